"""What both ops in front of Gated DeltaNet's states ask of their inputs. Knows neither."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels.checks import (
    FLOATS,
    require_dense,
    require_dense_rows,
    require_dtype,
    require_one_device,
    require_shape,
    require_spans,
)
from sparkle.kernels.gdn_memory import TAPS, GdnGates, GdnMemory


def require_gdn(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    **per_span: Tensor,
) -> None:
    """Raises ValueError unless shapes, dtypes, strides and devices are what the ops' docstrings say."""
    memory.check()
    value_heads = memory.states.shape[1]
    require_dtype("qkv", qkv, memory.columns.dtype)
    require_shape("qkv", qkv, None, memory.channels)
    require_dense_rows("qkv", qkv)
    require_dtype("ba", ba, *FLOATS)
    require_shape("ba", ba, qkv.shape[0], 2 * value_heads)
    require_dense_rows("ba", ba)
    require_dtype("conv", conv, *FLOATS)
    require_shape("conv", conv, memory.channels, TAPS)
    require_dense("conv", conv)
    for name, gate in (("a_log", gates.a_log), ("dt_bias", gates.dt_bias)):
        require_dtype(name, gate, *FLOATS)
        require_shape(name, gate, value_heads)
    require_spans(span_starts, **per_span)
    require_one_device(
        qkv=qkv,
        ba=ba,
        conv=conv,
        a_log=gates.a_log,
        dt_bias=gates.dt_bias,
        states=memory.states,
        span_starts=span_starts,
        **per_span,
    )

"""What the delta rule over prompts is fed: convolution and gates of spans of any length. Knows no state."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import FLOATS, require_dtype, require_one_device, require_shape, require_spans
from sparkle.kernels.gdn_memory import TAPS, GdnGates, GdnMemory


def gdn_prompt_inputs(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve each span behind the columns of its slot, and leave the slot the span's last inputs.

    mixed_t = SiLU(Σ_i conv[:, i] qkv_{t-3+i}), rounded once; b, a = ba; log_decay = -exp(a_log) softplus(a +
    dt_bias), beta = sigmoid(b).

    qkv float [T, C], rows of any stride, in the dtype of memory.columns; ba float [T, 2 Hv], rows of any
    stride; conv float [C, TAPS]; span_starts int64 [S+1]; slots int64 [S], all different, negative only where
    the span is empty. `memory.columns` is written in place: of a span shorter than TAPS-1 it keeps what still
    counts of its own. The slots' windows must have been folded in before (gdn_step with an empty span), or
    the sequences be new. Returns mixed [T, C] in qkv's dtype, log_decay and beta float32 [T, Hv]. ValueError
    for any other shape or dtype.
    """
    memory.check()
    value_heads = memory.states.shape[1]
    require_dtype("qkv", qkv, *FLOATS)
    require_dtype("qkv", qkv, memory.columns.dtype)
    require_shape("qkv", qkv, None, memory.channels)
    require_dtype("ba", ba, *FLOATS)
    require_shape("ba", ba, qkv.shape[0], 2 * value_heads)
    if qkv.stride(1) != 1 or ba.stride(1) != 1:
        raise ValueError(
            f"qkv and ba have columns of strides {qkv.stride(1)}, {ba.stride(1)} but must have 1"
        )
    require_dtype("conv", conv, *FLOATS)
    require_shape("conv", conv, memory.channels, TAPS)
    for name, gate in (("a_log", gates.a_log), ("dt_bias", gates.dt_bias)):
        require_dtype(name, gate, *FLOATS)
        require_shape(name, gate, value_heads)
    require_spans(span_starts, slots=slots)
    require_one_device(
        qkv=qkv, ba=ba, conv=conv, columns=memory.columns, span_starts=span_starts, slots=slots
    )
    return gdn_prompt_inputs_reference(qkv, ba, conv, gates, memory, span_starts, slots)


def gdn_prompt_inputs_reference(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See gdn_prompt_inputs."""
    mixed = reference_sequence.causal_conv(qkv, conv, memory.columns, span_starts, slots)
    b, a = ba.float().chunk(2, dim=1)
    log_decay = -gates.a_log.float().exp() * F.softplus(a + gates.dt_bias.float())
    return mixed, log_decay, b.sigmoid()

"""What every form of the gated delta rule over spans asks of its inputs. Knows no form."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_shape, require_spans


def require_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    span_starts: Tensor,
    slots: Tensor,
) -> None:
    """Raises ValueError unless shapes, dtypes and strides are `ops.delta_rule`'s; devices are not checked."""
    require_dtype("query", query, *FLOATS)
    require_dtype("key", key, query.dtype)
    require_dtype("value", value, query.dtype)
    require_shape("value", value, None, None, None)
    rows, heads, value_dim = value.shape
    require_shape("query", query, rows, None, None)
    require_shape("key", key, *query.shape)
    if heads % query.shape[1]:
        raise ValueError(f"value has {heads} heads but they must be a multiple of the key's {query.shape[1]}")
    for name, gate in (("log_decay", log_decay), ("beta", beta)):
        require_dtype(name, gate, torch.float32)
        require_shape(name, gate, rows, heads)
    require_spans(span_starts, slots=slots)
    require_dtype("states", states, torch.float32)
    require_shape("states", states, None, heads, query.shape[2], value_dim)
    require_dense("states", states)

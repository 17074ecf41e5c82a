"""y = x · wᵀ in bfloat16 for the few outputs that stay unquantised, a layer's gates. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dense, require_dtype, require_one_device, require_shape

MAX_COLUMNS = 256


def narrow_linear(x: Tensor, w: Tensor) -> Tensor:
    """y = x · wᵀ with float32 sums. x bfloat16 [M, K], w bfloat16 [N, K], both dense, N at most 256.

    On a GPU N and K are multiples of 16. Returns float32 [M, N]. ValueError for any other shape, dtype or
    stride.
    """
    for name, factor in (("x", x), ("w", w)):
        require_dtype(name, factor, torch.bfloat16)
        require_shape(name, factor, None, x.shape[-1])
        require_dense(name, factor)
    columns = w.shape[0]
    if columns > MAX_COLUMNS:
        raise ValueError(f"w has {columns} rows but must have at most {MAX_COLUMNS}")
    require_one_device(x=x, w=w)
    return narrow_linear_reference(x, w)


def narrow_linear_reference(x: Tensor, w: Tensor) -> Tensor:
    """See narrow_linear."""
    return x.float() @ w.float().t()

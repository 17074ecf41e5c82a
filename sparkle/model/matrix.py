"""Products with a matrix in either form: dense, or in FP8 blocks. Knows no layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops

Matrix = Tensor | ops.Fp8Blocks
"""A weight [N, K]."""


def product(x: Tensor, weight: Matrix) -> Tensor:
    """x · weightᵀ in x's dtype; x [M, K]. For FP8 blocks x is bfloat16 and is quantised for the product."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight)
    return ops.fp8_linear(ops.quantise_rows(x), weight)


def gated_product(x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
    """(SiLU(x · gateᵀ) · (x · upᵀ)) · downᵀ in x's dtype; gate_up [2N, K], the gate's N rows first."""
    if isinstance(gate_up, Tensor) or isinstance(down, Tensor):
        return product(ops.silu_mul(product(x, gate_up)), down)
    return ops.fp8_linear(ops.gate_up_silu_quantise(ops.quantise_rows(x), gate_up), down)


def logits_of(x: Tensor, lm_head: Matrix, *, vocabulary: int) -> Tensor:
    """x · lm_headᵀ in float32 [M, vocabulary], of as many rows of lm_head."""
    if isinstance(lm_head, Tensor):
        return F.linear(x, lm_head[:vocabulary]).float()
    return ops.lm_head_logits(ops.quantise_rows(x), lm_head, vocabulary=vocabulary)


def rows_from(weight: Matrix, first: int) -> Matrix:
    """The rows of `weight` from `first` on, which begins a block."""
    if isinstance(weight, Tensor):
        return weight[first:]
    return ops.Fp8Blocks(weight.values[first:], weight.scales[first // ops.BLOCK :])

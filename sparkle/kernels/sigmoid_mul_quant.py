"""Attention's gate, x · sigmoid(gate), quantised in the same pass over memory. Knows no product."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.quantise import GROUP, Fp8Rows, quantise_rows_reference


def sigmoid_mul_quantise(x: Tensor, gate: Tensor) -> Fp8Rows:
    """y = x · sigmoid(gate) in float32, then 1x128 e4m3 without a rounding between.

    x float [M, H, D], dense, H·D a multiple of 128; gate float [M, H, D], rows and heads of any stride (it is
    part of a wider product). Returns [M, H·D]. ValueError for any other shape, dtype or stride.
    """
    require_dtype("x", x, *FLOATS)
    require_shape("x", x, None, None, None)
    require_dense("x", x)
    rows, heads, dim = x.shape
    if heads * dim % GROUP or heads * dim == 0:
        raise ValueError(f"x has {heads} heads of {dim} but together they must be a multiple of {GROUP} wide")
    require_dtype("gate", gate, *FLOATS)
    require_shape("gate", gate, rows, heads, dim)
    if gate.stride(2) != 1 and dim > 1:
        raise ValueError(f"gate has strides {list(gate.stride())} but a head must be dense: [any, any, 1]")
    require_one_device(x=x, gate=gate)
    return sigmoid_mul_quantise_reference(x, gate)


def sigmoid_mul_quantise_reference(x: Tensor, gate: Tensor) -> Fp8Rows:
    """See sigmoid_mul_quantise."""
    return quantise_rows_reference((x.float() * gate.float().sigmoid()).flatten(1))

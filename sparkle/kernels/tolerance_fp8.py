"""How far an FP8 op's result may be from the exact one, by op, each bound with its reason. Knows no tests.

A result in e4m3 is 1/16 off by its format alone, and a value next to a rounding's border falls to either
side. So errors are counted over the whole result: the root mean square of the difference over that of the
exact result, which is the op's formula in float64 on the same inputs. A result passes when its error is at
most `factor` times that of the float32 reference, plus `floor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fp8Bound:
    """error <= factor · error of the reference + floor, and why."""

    factor: float
    floor: float
    why: str


FP8_BOUNDS: Mapping[str, Fp8Bound] = {
    "add_rms_norm": Fp8Bound(
        1.02, 1e-6, "the mean's order of addition moves a few results over a bfloat16 rounding"
    ),
    "norm_quantise": Fp8Bound(
        1.02, 1e-6, "the mean's order of addition and the GPU's exp move a few values over an e4m3 rounding"
    ),
    "fp8_linear": Fp8Bound(
        2.0, 3e-4, "the tensor core aligns 32 products at a time and keeps about 14 bits of their sum"
    ),
}


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference over that of `exact`, float64 of the same shape; a NaN stays one."""
    squares, difference = float(exact.square().sum()), got.double() - exact
    # an exact zero is met exactly or not at all
    return math.sqrt(float(difference.square().sum()) / (squares or 1.0))


def fp8_mismatch(op: str, got: Tensor, reference: Tensor, exact: Tensor) -> str | None:
    """None where `got` is within the bound of `op`, else both errors in words."""
    bound = FP8_BOUNDS[op]
    if got.shape != exact.shape:
        return f"{op}: shape {list(got.shape)} but the exact result has {list(exact.shape)}"
    error = relative_error(got, exact)
    allowed = bound.factor * relative_error(reference, exact) + bound.floor
    # a NaN compares as false, so it is a mismatch
    if error <= allowed:
        return None
    return f"{op}: relative error {error:.3g} but at most {allowed:.3g} is allowed ({bound.why})"

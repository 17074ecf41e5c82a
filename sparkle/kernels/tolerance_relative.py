"""How far a kernel's result may be from the exact one, by op, each bound with its reason. Knows no tests.

For ops that compute in a narrow format, where the last place of single values says little: a result in e4m3
is 1/16 off by its format alone, and a value next to a rounding's border falls to either side. So errors are
counted over the whole result: the root mean square of the difference over that of the exact result, which is
the op's formula in float64 on the same inputs. A result passes when its error is at most `factor` times that
of the float32 reference, plus `floor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RelativeBound:
    """error <= factor · error of the reference + floor, and why."""

    factor: float
    floor: float
    why: str


RELATIVE_BOUNDS: Mapping[str, RelativeBound] = {
    "norm_round": RelativeBound(
        1.02, 1e-6, "the mean's order of addition moves a few results over a bfloat16 rounding"
    ),
    "norm_quantise": RelativeBound(
        1.02, 1e-6, "the mean's order of addition and the GPU's exp move a few values over an e4m3 rounding"
    ),
    "fp8_linear": RelativeBound(
        2.0, 3e-4, "the tensor core aligns 32 products at a time and keeps about 14 bits of their sum"
    ),
    "narrow_linear": RelativeBound(
        2.0, 5e-6, "products of bfloat16 are exact in float32, but the tensor core truncates their sums"
    ),
    "gdn_prompt_mixed": RelativeBound(
        1.02, 1e-6, "the GPU's exp and fused sums move a few results over a rounding"
    ),
    "gdn_prompt_gates": RelativeBound(
        2.0, 1e-6, "an exponential and a logarithm of the GPU's own, in float32"
    ),
    "verify_attention": RelativeBound(
        1.05, 3e-4, "weights in float16 have 11 bits; the result's own rounding is the reference's"
    ),
    "verify_attention_fp8": RelativeBound(
        1.05, 2e-3, "the tensor core keeps 14 bits of a score's sum, and the tests' scores are large"
    ),
    "verify_attention_quantise": RelativeBound(
        1.05, 1e-3, "e4m3's rounding is most of it; what differs moves a few values over it"
    ),
    "verify_attention_bf16": RelativeBound(
        1.5, 1e-3, "weights and values in bfloat16: as many bits again as the result's own rounding has"
    ),
    "ring_attention_quantise": RelativeBound(
        1.05, 2e-3, "as verify_attention_bf16, of which e4m3's rounding hides most"
    ),
    "gdn_step": RelativeBound(
        1.05, 1e-3, "reads in two parts of bfloat16 have 16 bits; what differs moves a few over a rounding"
    ),
    "gdn_state": RelativeBound(
        2.0, 1e-5, "float32 products in three parts, a window of sums in another order"
    ),
    "qkv_write": RelativeBound(1.02, 1e-6, "the mean's order of addition moves a few values over a rounding"),
    "gdn_chunk": RelativeBound(
        1.0, 6e-3, "operands in bfloat16, three roundings of 2⁻⁹ one after another, sums in float32"
    ),
    "prefill_attention": RelativeBound(1.5, 2e-3, "weights in bfloat16, as every flash attention has them"),
}


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference over that of `exact`, float64 of the same shape; a NaN stays one."""
    squares, difference = float(exact.square().sum()), got.double() - exact
    # an exact zero is met exactly or not at all
    return math.sqrt(float(difference.square().sum()) / (squares or 1.0))


def relative_mismatch(op: str, got: Tensor, reference: Tensor, exact: Tensor) -> str | None:
    """None where `got` is within the bound of `op`, else both errors in words."""
    bound = RELATIVE_BOUNDS[op]
    if got.shape != exact.shape:
        return f"{op}: shape {list(got.shape)} but the exact result has {list(exact.shape)}"
    error = relative_error(got, exact)
    allowed = bound.factor * relative_error(reference, exact) + bound.floor
    # a NaN compares as false, so it is a mismatch
    if error <= allowed:
        return None
    return f"{op}: relative error {error:.3g} but at most {allowed:.3g} is allowed ({bound.why})"

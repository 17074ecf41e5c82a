"""How far a sequence op's result may be from the exact one, by op, each with its reason. Knows no tests.

Errors are the root mean square of the difference over that of the exact result, which is the op's formula in
float64 on the same inputs. A result passes when its error is at most `factor` times that of the float32
reference, plus `floor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from sparkle.kernels.tolerance_fp8 import relative_error


@dataclass(frozen=True, slots=True)
class SequenceBound:
    """error <= factor · error of the reference + floor, and why."""

    factor: float
    floor: float
    why: str


SEQUENCE_BOUNDS: Mapping[str, SequenceBound] = {
    "verify_attention": SequenceBound(
        1.05, 3e-4, "weights in float16 have 11 bits; the result's own rounding is the reference's"
    ),
    "verify_attention_bf16": SequenceBound(
        1.5, 1e-3, "weights and values in bfloat16: as many bits again as the result's own rounding has"
    ),
    "gdn_step": SequenceBound(1.05, 1e-3, "reads in tf32 have 10 bits, two more than the result"),
    "gdn_state": SequenceBound(
        2.0, 1e-5, "float32 products in three parts, a window of sums in another order"
    ),
    "qkv_write": SequenceBound(1.02, 1e-6, "the mean's order of addition moves a few values over a rounding"),
    "gdn_chunk": SequenceBound(
        1.0, 6e-3, "operands in bfloat16, three roundings of 2⁻⁹ one after another, sums in float32"
    ),
    "prefill_attention": SequenceBound(1.5, 2e-3, "weights in bfloat16, as every flash attention has them"),
}


def sequence_mismatch(op: str, got: Tensor, reference: Tensor, exact: Tensor) -> str | None:
    """None where `got` is within the bound of `op`, else both errors in words."""
    bound = SEQUENCE_BOUNDS[op]
    if got.shape != exact.shape:
        return f"{op}: shape {list(got.shape)} but the exact result has {list(exact.shape)}"
    error = relative_error(got, exact)
    allowed = bound.factor * relative_error(reference, exact) + bound.floor
    # a NaN compares as false, so it is a mismatch
    if error <= allowed:
        return None
    return f"{op}: relative error {error:.3g} but at most {allowed:.3g} is allowed ({bound.why})"

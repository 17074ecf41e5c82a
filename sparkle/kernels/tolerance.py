"""How far an op's result may be from the exact one, by op and dtype, each bound with its reason.

An error is counted in units in the last place (ulp): |got - exact| / (eps(dtype) · max(|exact|, rms(exact))).
The root mean square keeps entries near zero, where terms cancel, from counting as infinitely wrong. Knows no
tests: benches and start-up checks may use it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `ulps` units in the last place, and why so many."""

    ulps: float
    why: str


_MOVED = "values are moved, not computed"
_ONCE = "computed in float32 and rounded once, by half a unit; the rest is float32's own error"

BOUNDS: Mapping[tuple[str, torch.dtype], Bound] = {
    ("rms_norm", torch.float32): Bound(4, "a mean of D squares, a root and two products"),
    ("rms_norm", torch.bfloat16): Bound(0.51, _ONCE),
    ("gated_rms_norm", torch.float32): Bound(4, "as rms_norm, and a sigmoid"),
    ("gated_rms_norm", torch.bfloat16): Bound(0.51, _ONCE),
    ("silu_mul", torch.float32): Bound(3, "an exponential, a quotient and two products"),
    ("silu_mul", torch.bfloat16): Bound(0.51, _ONCE),
    ("rotary_table", torch.float32): Bound(
        4, "the angle is float64's; what full turns leave of it, up to pi, and its cosine are float32's"
    ),
    ("rotary", torch.float32): Bound(2, "two products and a sum"),
    ("rotary", torch.bfloat16): Bound(0.51, _ONCE),
    ("write_kv", torch.float32): Bound(0, _MOVED),
    ("write_kv", torch.bfloat16): Bound(0, _MOVED),
    ("paged_attention", torch.float32): Bound(
        16, "sums over D and over the context; an exponential makes an error of its argument relative"
    ),
    ("paged_attention", torch.bfloat16): Bound(0.51, _ONCE),
    ("causal_conv", torch.float32): Bound(4, "a sum of W products, then SiLU"),
    ("causal_conv", torch.bfloat16): Bound(0.51, _ONCE),
    ("delta_rule", torch.float32): Bound(
        32, "each token corrects what the state holds, so errors pass through a solve over up to 64 tokens"
    ),
    ("delta_rule", torch.bfloat16): Bound(0.51, _ONCE),
    ("dequantise_blocks", torch.float32): Bound(
        0, "one product of float32 factors, rounded as the exact product is"
    ),
}


def mismatch(op: str, got: Tensor, exact: Tensor) -> str | None:
    """None where `got` is within the bound of `op` and its own dtype, else the worst place in words.

    exact: float64, of got's shape. A value that is not finite in only one of them is a mismatch.
    """
    bound = BOUNDS[op, got.dtype]
    if got.shape != exact.shape:
        return f"{op}: shape {list(got.shape)} but the exact result has {list(exact.shape)}"
    if got.numel() == 0:
        return None
    allowed = exact.to(got.dtype) if bound.ulps == 0 else exact
    scale = allowed.double().abs().clamp_min(float(exact.square().mean().sqrt()))
    error = (got.double() - allowed.double()).abs() / (torch.finfo(got.dtype).eps * scale)
    # equal values are right even where the scale is zero; anything not a number is wrong
    error = error.masked_fill(got == allowed, 0).nan_to_num(nan=torch.inf)
    worst = int(error.argmax())
    if error.flatten()[worst] <= bound.ulps:
        return None
    place = [int(index) for index in torch.unravel_index(torch.tensor(worst), error.shape)]
    return (
        f"{op}: {float(error.flatten()[worst]):.3g} ulp at {place} but at most {bound.ulps} are allowed "
        f"({bound.why}): got {got.flatten()[worst]}, exact {exact.flatten()[worst]}"
    )

"""A token for each row of logits, on their device and without waiting for it. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.largest import largest

UNIT = 2.0**44
"""Weights become whole numbers of 1 / UNIT: sums of 2^18 of them are exact, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """How each row is drawn: float64 [R, 1] each."""

    temperatures: Tensor  # above 0; of a row with width 1 anything
    top_ps: Tensor
    min_ps: Tensor
    chances: Tensor  # the uniform numbers, from 0 to less than 1
    widths: Tensor  # the likeliest tokens that are drawn from: at least 1; at 0 any token comes out

    @classmethod
    def of(cls, columns: Sequence[Tensor]) -> RowSettings:
        """From five of float64 [R], in the order above."""
        temperatures, top_ps, min_ps, chances, widths = (column[:, None] for column in columns)
        return cls(temperatures=temperatures, top_ps=top_ps, min_ps=min_ps, chances=chances, widths=widths)


def draw_rows(logits: Tensor, settings: RowSettings, *, most: int) -> Tensor:
    """Inverse-CDF sampling over the likeliest tokens of each row: int64 [R]; of a row with a NaN any token.

    logits float32 [R, vocab]; `most` is the greatest width, at most vocab. Sums are of whole numbers, so that
    neither a wider row beside this one nor the device changes them.
    """
    values, ids = largest(logits, most)
    scores = values.double()
    # the largest is taken off first: what overflows at a tiny temperature is then only ever -inf
    weights = ((scores - scores[:, :1]) / settings.temperatures).exp()
    weights = weights * (torch.arange(most, device=logits.device) < settings.widths)
    shares = (weights * UNIT).long()
    cumulative = shares.cumsum(dim=1)
    kept = (cumulative - shares) < settings.top_ps * cumulative[:, -1:]
    kept &= weights >= settings.min_ps
    # a broken row keeps nothing
    last = (kept.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    targets = settings.chances * cumulative.gather(1, last)
    picks = torch.minimum((cumulative <= targets).sum(dim=1, keepdim=True), last)
    return ids.gather(1, picks)[:, 0]


def finite_rows(logits: Tensor) -> Tensor:
    """Whether each row's logits are all finite: bool [R]."""
    # one bad number makes the row's sum bad
    return logits.sum(dim=1).isfinite()

"""Chooses a draft among the likeliest tokens of each row, one behind the other. Knows no layer.

A row's logits know nothing of the tokens chosen before it. What two neighbours are worth beside each other is
a product of rank `rank`, weighted by the row itself: score(c) = logit[c] + Σ_r A[before, r] · h[r] · B[c, r].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_weights import SelectorWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How S drafts are drawn rather than chosen: by the numbers that the target's own tokens are drawn by.

    Where draft and target rate tokens alike, the same number makes both take the same one: more is kept than
    of the likeliest tokens, and a draft is still a function of what is known.
    """

    temperatures: Tensor  # float64 [S], 0 for the likeliest
    chances: Tensor  # float64 [S, N], from 0 to less than 1: of the position of each token of the draft


def choose_path(
    x: Tensor,
    logits: Tensor,
    anchors: Tensor,
    weights: SelectorWeights,
    *,
    candidates: int,
    draws: Draws | None = None,
) -> Tensor:
    """In each row the token with the highest score behind the one chosen before it: int64 [S, N].

    x float [S, N, hidden], the rows' normed outputs; logits float32 [S · N, vocab]; anchors int64 [S], the
    tokens in front. Only the `candidates` likeliest of a row are looked at. With `draws` a token is drawn
    from softmax(score / temperature) of these, the likeliest first, as the sampler draws.
    """
    spans, rows, _ = x.shape
    values, ids = (part.view(spans, rows, candidates) for part in ops.largest(logits, candidates))
    own = F.linear(x, weights.projection).float()
    successors = F.embedding(ids, weights.successors).float() * own[:, :, None]
    first = F.embedding(anchors, weights.predecessors).float()
    # between all candidates of a row and all of the next, so that the walk itself has only to look up
    before = F.embedding(ids[:, :-1], weights.predecessors).float()
    edges = before @ successors[:, 1:].transpose(2, 3)  # [S, N - 1, before, behind]
    chosen: list[Tensor] = []
    for row in range(rows):
        if chosen:
            edge = edges[:, row - 1].gather(1, chosen[-1][:, :, None].expand(-1, -1, candidates))[:, 0]
        else:
            edge = (successors[:, 0] @ first[:, :, None])[..., 0]
        chosen.append(_choose(values[:, row] + edge, draws, row))
    return ids.gather(2, torch.stack(chosen, dim=1))[..., 0]


def _choose(scores: Tensor, draws: Draws | None, row: int) -> Tensor:
    """Of scores [S, candidates] the place of one each, int64 [S, 1]."""
    if draws is None:
        return scores.argmax(dim=1, keepdim=True)
    falling, places = scores.double().sort(dim=1, descending=True, stable=True)
    temperatures, chances = draws.temperatures[:, None], draws.chances[:, row : row + 1]
    shares = ((falling - falling[:, :1]) / temperatures.clamp(min=1e-300)).exp().cumsum(dim=1)
    pick = (shares <= chances * shares[:, -1:]).sum(dim=1, keepdim=True).clamp(max=scores.shape[1] - 1)
    return places.gather(1, torch.where(temperatures > 0, pick, 0))

"""Chooses a draft among the likeliest tokens of each row, one behind the other. Knows no layer.

A row's logits know nothing of the tokens chosen before it. What two neighbours are worth beside each other is
a product of rank `rank`, weighted by the row itself: score(c) = logit[c] + Σ_r A[before, r] · h[r] · B[c, r].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_weights import SelectorWeights


def choose_path(
    x: Tensor, logits: Tensor, anchors: Tensor, weights: SelectorWeights, *, candidates: int
) -> Tensor:
    """In each row the token with the highest score behind the one chosen before it: int64 [S, N].

    x float [S, N, hidden], the rows' normed outputs; logits float32 [S · N, vocab]; anchors int64 [S], the
    tokens in front. Only the `candidates` likeliest of a row are looked at.
    """
    spans, rows, _ = x.shape
    values, ids = (part.view(spans, rows, candidates) for part in ops.largest(logits, candidates))
    own = F.linear(x, weights.projection).float()
    successors = F.embedding(ids, weights.successors).float() * own[:, :, None]
    first = F.embedding(anchors, weights.predecessors).float()
    # between all candidates of a row and all of the next, so that the walk itself has only to look up
    before = F.embedding(ids[:, :-1], weights.predecessors).float()
    edges = before @ successors[:, 1:].transpose(2, 3)  # [S, N - 1, before, behind]
    score = values[:, 0] + (successors[:, 0] @ first[:, :, None])[..., 0]
    chosen = [score.argmax(dim=1, keepdim=True)]
    for row in range(1, rows):
        edge = edges[:, row - 1].gather(1, chosen[-1][:, :, None].expand(-1, -1, candidates))[:, 0]
        chosen.append((values[:, row] + edge).argmax(dim=1, keepdim=True))
    return ids.gather(2, torch.stack(chosen, dim=1))[..., 0]

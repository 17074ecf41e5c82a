"""Chooses a draft among the likeliest tokens of each row, one behind the other. Knows no layer."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.ops import Draws as Draws
from sparkle.model.dflash_weights import SelectorWeights


def choose_path(
    logits: Tensor,
    own: Tensor,
    anchors: Tensor,
    weights: SelectorWeights,
    *,
    candidates: int,
    draws: Draws | None = None,
) -> Tensor:
    """The tokens of S drafts of W - 1 rows, see ops.candidate_path: int64 [S, W - 1].

    logits float32 [S · W, vocab] and own float32 [S · W, rank], of blocks whose first rows stand for what is
    written already and are not looked at; anchors int64 [S], the tokens there. Only the `candidates`
    likeliest tokens of a row are looked at.
    """
    values, ids = ops.largest(logits, candidates)
    rows = (anchors.shape[0], -1)
    return ops.candidate_path(
        ops.Candidates(
            values=values.view(*rows, candidates)[:, 1:],
            ids=ids.view(*rows, candidates)[:, 1:],
            own=own.view(*rows, own.shape[1])[:, 1:],
            anchors=anchors,
            predecessors=weights.predecessors,
            successors=weights.successors,
        ),
        draws,
    )

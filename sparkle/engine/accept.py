"""Drafts on the device: guesses filled in, and compared with what was drawn. Knows no requests."""

from __future__ import annotations

import torch
from torch import Tensor


def with_guesses(token_ids: Tensor, guesses: Tensor, span_starts: Tensor, *, vocab_size: int) -> Tensor:
    """token_ids int64 [T] with guesses int64 [S, N] in place of what is negative.

    The n-th guess belongs to the n-th row behind the first of its span; span_starts int64 [S+1]. A guess
    beyond the vocabulary becomes its last token: no padding is drawn, so it is as wrong as before.
    """
    rows = torch.arange(token_ids.shape[0], device=token_ids.device)
    spans, most = guesses.shape
    span = torch.searchsorted(span_starts[1:], rows, right=True).clamp(max=spans - 1)
    places = (rows - span_starts[span] - 1).clamp(0, most - 1)
    return torch.where(token_ids < 0, guesses[span, places].clamp(max=vocab_size - 1), token_ids)

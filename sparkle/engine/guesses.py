"""A draft model's guesses among the tokens of a pass, on their device. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sparkle.engine.buckets import Bucket


def token_sources(token_ids: Sequence[int], span_starts: Sequence[int], bucket: Bucket) -> list[int]:
    """For each of a bucket's rows where its token is for `with_guesses`; token_ids are negative for guesses.

    Known on the host, so that the device has only to pick.
    """
    guesses = bucket.width - 1
    sources = list(range(bucket.sequences * guesses, bucket.sequences * guesses + bucket.rows))
    for span, (start, stop) in enumerate(pairwise(span_starts)):
        for row in range(start, stop):
            if token_ids[row] < 0:
                sources[row] = span * guesses + row - start - 1
    return sources


def with_guesses(token_ids: Tensor, guesses: Tensor, sources: Tensor, *, vocab_size: int) -> Tensor:
    """token_ids int64 [T] with guesses int64 [S, N] in their places, by sources int64 [T] of `token_sources`.

    The n-th guess belongs to the n-th row behind the first of its span. One beyond the vocabulary becomes its
    last token: no padding is drawn, so it is as wrong as before.
    """
    both = torch.cat((guesses.view(-1), token_ids))
    return both.index_select(0, sources).clamp(max=vocab_size - 1)

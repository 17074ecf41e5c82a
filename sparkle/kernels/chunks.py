"""Where the chunks of a pass lie: spans cut into runs of 64 rows, found on the device. Knows no op."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All chunks of a pass, those of one span one after another."""

    bounds: Tensor  # int64 [C, 2], first row and the row behind the last; equal where there is no such chunk
    first: Tensor  # int64 [S + 1], each span's first chunk; the last entry is the number of chunks


def cut_into_chunks(rows: int, span_starts: Tensor) -> Chunks:
    """The chunks of `rows` rows; C is the most there can be: how many there are, the device alone knows."""
    spans = span_starts.shape[0] - 1
    counts = (span_starts.diff() + CHUNK_TOKENS - 1) // CHUNK_TOKENS
    first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    ids = torch.arange(rows // CHUNK_TOKENS + spans, device=span_starts.device)
    span = torch.searchsorted(first, ids, right=True) - 1
    real = span < spans
    span = span.clamp_max(max(spans - 1, 0))
    starts = span_starts[span] + (ids - first[span]) * CHUNK_TOKENS
    stops = torch.minimum(starts + CHUNK_TOKENS, span_starts[span + 1])
    bounds = torch.stack((starts, stops), dim=1)
    return Chunks(bounds=torch.where(real[:, None], bounds, 0), first=first)

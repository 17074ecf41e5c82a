"""Where the chunks of a pass lie: spans cut into runs of 64 rows, found on the device. Knows no op."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, jit, tl

CHUNK_TOKENS = 64
CHUNKS_PER_PROGRAM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All chunks of a pass, those of one span one after another."""

    bounds: Tensor  # int64 [C, 2], first row and the row behind the last; equal where there is no such chunk
    first: Tensor  # int64 [S + 1], each span's first chunk; the last entry is the number of chunks


def cut_into_chunks(rows: int, span_starts: Tensor) -> Chunks:
    """The chunks of `rows` rows; C is the most there can be: how many there are, the device alone knows."""
    spans, device = span_starts.shape[0] - 1, span_starts.device
    count = rows // CHUNK_TOKENS + spans
    bounds = torch.empty(count, 2, dtype=torch.int64, device=device)
    first = torch.empty(spans + 1, dtype=torch.int64, device=device)
    cut_kernel[(max(1, -(-count // CHUNKS_PER_PROGRAM)),)](
        span_starts,
        bounds,
        first,
        spans,
        count,
        SPANS=1 << max(spans - 1, 1).bit_length(),
        CHUNKS=CHUNKS_PER_PROGRAM,
        C=CHUNK_TOKENS,
    )
    return Chunks(bounds=bounds, first=first)


@jit("spans", "count")
def cut_kernel(
    p_span_starts: Pointer,  # int64 [spans + 1]
    p_bounds: Pointer,  # int64 [count, 2]
    p_first: Pointer,  # int64 [spans + 1]
    spans: int,
    count: int,
    SPANS: constexpr,  # a power of two, at least spans
    CHUNKS: constexpr,
    C: constexpr,
) -> None:
    o_span = tl.arange(0, SPANS)
    b_start = tl.load(p_span_starts + o_span, mask=o_span < spans, other=0)
    b_stop = tl.load(p_span_starts + 1 + o_span, mask=o_span < spans, other=0)
    b_chunks = (b_stop - b_start + C - 1) // C
    b_end = tl.cumsum(b_chunks, axis=0)
    b_first = b_end - b_chunks
    tl.store(p_first + o_span, b_first, mask=o_span < spans)
    tl.store(p_first + spans, tl.sum(b_chunks, axis=0))
    o_chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    # each chunk is of one span, or of none: then both sums are 0
    b_place = o_chunk[:, None] - b_first[None, :]
    inside = (b_place >= 0) & (b_place < b_chunks[None, :])
    b_row = b_start[None, :] + b_place * C
    p_bound = p_bounds + 2 * o_chunk
    tl.store(p_bound, tl.sum(tl.where(inside, b_row, 0), axis=1), mask=o_chunk < count)
    b_row = tl.minimum(b_row + C, b_stop[None, :])
    tl.store(p_bound + 1, tl.sum(tl.where(inside, b_row, 0), axis=1), mask=o_chunk < count)

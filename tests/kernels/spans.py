"""What the op tests share: the rows of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

FLOATS = [torch.float32, torch.bfloat16]
NUM_SLOTS = 11

# lengths of a pass's spans: none, empty, single tokens, odd ones, around the chunk of 64
SPANS = [(), (0,), (1,), (5,), (1, 1, 1), (3, 1, 0, 7, 1, 3), (63, 64, 65), (130, 1, 2)]


def starts_of(lengths: Sequence[int]) -> Tensor:
    """span_starts of spans of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0)


def slots_of(lengths: Sequence[int]) -> Tensor:
    """A slot for each span, all different, in no order."""
    return torch.tensor([(7 * span + 3) % NUM_SLOTS for span in range(len(lengths))], dtype=torch.int64)


def bounds_of(span_starts: Tensor) -> list[tuple[int, int]]:
    """First row and end of each span."""
    return list(pairwise(int(start) for start in span_starts))

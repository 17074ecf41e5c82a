"""The largest logits of each row in a total order. Knows no sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dtype, require_shape


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row, largest first, of equal ones the lowest id first; -0.0 equals 0.0.

    logits float32 [R, V], rows of any stride, 1 <= count <= V. Returns values float32 [R, count], as they
    stand in `logits`, and ids int64 [R, count]. What is returned of a row with a NaN is not said, but the ids
    are ids. ValueError for any other shape, dtype or count.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    if not 1 <= count <= logits.shape[1]:
        raise ValueError(f"count is {count} but must be 1 to the {logits.shape[1]} columns of logits")
    if logits.stride(1) != 1:
        raise ValueError(f"logits has strides {list(logits.stride())} but a row must be dense: [any, 1]")
    return largest_reference(logits, count)


def largest_reference(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See largest."""
    vocabulary = logits.shape[1]
    # + 0.0 makes -0.0 and 0.0 one value; the xor makes the bits of negative floats rise with their value
    bits = (logits + 0.0).view(torch.int32)
    rising = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()
    # the id in the low half, lowest last: no two keys are equal
    keys = (rising << 32) + torch.arange(vocabulary - 1, -1, -1, device=logits.device)
    ids = vocabulary - 1 - (keys.topk(count, dim=1).values & 0xFFFFFFFF)
    return logits.gather(1, ids), ids

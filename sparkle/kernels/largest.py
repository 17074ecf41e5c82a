"""The largest logits of each row in a total order. Knows no sampling.

Two kernels. The first takes the largest of each group of 64 ids, one pass over memory. Among the `count`
groups whose largest are the largest, of equal ones the first, lie all `count` results: for any other logit
each of those groups holds one that comes before it. So the second kernel finds these groups, and then the
results among their logits. Both times it sorts keys that hold a value and its place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dtype, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

GROUP_IDS = 64
GROUPS_PER_PROGRAM = 64
MAX_GROUPS, MAX_COUNT = 4096, 64
WARPS = 8


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
    if logits.is_cuda and count <= MAX_COUNT and logits.shape[1] <= MAX_GROUPS * GROUP_IDS:
        return largest_triton(logits, count, pdl=True)
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


def largest_triton(logits: Tensor, count: int, *, pdl: bool) -> tuple[Tensor, Tensor]:
    """Launches the kernels of largest; `pdl`: as programmatic dependent launches."""
    rows, vocabulary = logits.shape
    groups = -(-vocabulary // GROUP_IDS)
    best = torch.empty(rows, groups, dtype=torch.float32, device=logits.device)
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    if rows:
        largest_of_groups_kernel[-(-groups // GROUPS_PER_PROGRAM), rows](
            logits,
            best,
            vocabulary,
            groups,
            logits.stride(0),
            GROUPS=GROUPS_PER_PROGRAM,
            IDS=GROUP_IDS,
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
        kept = max(2, 1 << (count - 1).bit_length())  # of one, tl.topk makes no block
        largest_of_rows_kernel[(rows,)](
            logits,
            best,
            values,
            ids,
            vocabulary,
            groups,
            logits.stride(0),
            count,
            GROUPS=max(kept, 1 << (groups - 1).bit_length()),
            IDS=GROUP_IDS,
            KEPT=kept,
            PDL=pdl,
            num_warps=WARPS,
            launch_pdl=pdl,
        )
    return values, ids


@jit()
def rising_key(b_value: Block, b_place: Block) -> Block:
    """int64 that rises with the value and, of equal ones, falls with the place; -0.0 equals 0.0."""
    b_bits = (b_value + 0.0).to(tl.int32, bitcast=True)
    # the bits of negative floats fall with their value
    b_rising = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
    return (b_rising.to(tl.int64) << 32) | (0x7FFFFFFF - b_place).to(tl.int64)


@jit()
def place_of_key(b_key: Block) -> Block:
    """The place that a key was made of."""
    return 0x7FFFFFFF - (b_key & 0x7FFFFFFF).to(tl.int32)


@jit("groups")
def largest_of_groups_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_best: Pointer,  # float32 [rows, groups]
    vocabulary: int,
    groups: int,
    stride_logits: int,
    GROUPS: constexpr,
    IDS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(1).to(tl.int64)
    o_group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    o_id = o_group[:, None] * IDS + tl.arange(0, IDS)[None, :]
    if PDL:
        start_next_then_wait()
    p_l = p_logits + i_row * stride_logits + o_id
    b_logits = tl.load(p_l, mask=o_id < vocabulary, other=float("-inf"))
    tl.store(p_best + i_row * groups + o_group, tl.max(b_logits, axis=1), mask=o_group < groups)


@jit("groups", "count")
def largest_of_rows_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_best: Pointer,  # float32 [rows, groups]
    p_values: Pointer,  # float32 [rows, count]
    p_ids: Pointer,  # int64 [rows, count]
    vocabulary: int,
    groups: int,
    stride_logits: int,
    count: int,
    GROUPS: constexpr,  # groups, up to a power of two
    IDS: constexpr,
    KEPT: constexpr,  # count, up to a power of two
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    lowest = -0x8000000000000000
    o_group = tl.arange(0, GROUPS)
    if PDL:
        start_next_then_wait()
    b_best = tl.load(p_best + i_row * groups + o_group, mask=o_group < groups, other=float("-inf"))
    b_keys = tl.where(o_group < groups, rising_key(b_best, o_group), lowest)
    if KEPT < GROUPS:
        b_keys = tl.topk(b_keys, KEPT)
    b_group = place_of_key(b_keys)
    # where groups are fewer than KEPT, a place without one reads nothing
    o_id = tl.where(b_keys == lowest, vocabulary, b_group * IDS)[:, None] + tl.arange(0, IDS)[None, :]
    p_row = p_logits + i_row * stride_logits
    b_logits = tl.load(p_row + o_id, mask=o_id < vocabulary, other=float("-inf"))
    b_keys = tl.where(o_id < vocabulary, rising_key(b_logits, o_id), lowest)
    b_id = place_of_key(tl.topk(tl.reshape(b_keys, (KEPT * IDS,)), KEPT))
    o_place = tl.arange(0, KEPT)
    kept = o_place < count
    b_value = tl.load(p_row + b_id, mask=kept, other=0.0)
    tl.store(p_values + i_row * count + o_place, b_value, mask=kept)
    tl.store(p_ids + i_row * count + o_place, b_id.to(tl.int64), mask=kept)

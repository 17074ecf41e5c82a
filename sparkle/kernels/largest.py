"""The largest logits of each row in a total order. Knows no sampling.

Ids stand in groups of 64. Among the `count` groups with the largest maxima, of equal ones the first, lie all
`count` results: for any other logit each of those groups holds one that comes before it. So nothing of the
vocabulary's size is sorted, and each of three kernels sorts at most 512 keys that hold a value and its place:
the groups of each part of a row, then the ids of these groups, shared among programs, then what those found.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dtype, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

GROUP_IDS = 64
PART_GROUPS = 512
MAX_PARTS = 8
SHARES = 8
# two sizes alone, for what a request asks for should find its kernels compiled
KEPT = (32, 64)
GROUP_WARPS, MERGE_WARPS = 16, 8


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
    if logits.is_cuda and count <= KEPT[-1] and logits.shape[1] <= MAX_PARTS * PART_GROUPS * GROUP_IDS:
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
    parts = -(-vocabulary // (PART_GROUPS * GROUP_IDS))
    kept = next(size for size in KEPT if count <= size)
    group_keys = torch.empty(rows, parts, kept, dtype=torch.int64, device=logits.device)
    id_keys = torch.empty(rows, SHARES, kept, dtype=torch.int64, device=logits.device)
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    if rows:
        largest_groups_kernel[parts, rows](
            logits,
            group_keys,
            vocabulary,
            logits.stride(0),
            GROUPS=PART_GROUPS,
            IDS=GROUP_IDS,
            KEPT=kept,
            PDL=pdl,
            num_warps=GROUP_WARPS,
            launch_pdl=pdl,
        )
        largest_ids_kernel[SHARES, rows](
            logits,
            group_keys,
            id_keys,
            vocabulary,
            logits.stride(0),
            parts,
            PARTS=1 << (parts - 1).bit_length(),
            SHARES=SHARES,
            IDS=GROUP_IDS,
            KEPT=kept,
            PDL=pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=pdl,
        )
        largest_of_shares_kernel[(rows,)](
            logits,
            id_keys,
            values,
            ids,
            logits.stride(0),
            count,
            SHARES=SHARES,
            KEPT=kept,
            PDL=pdl,
            num_warps=MERGE_WARPS,
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


@jit()
def largest_groups_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_group_keys: Pointer,  # int64 [rows, parts, KEPT]
    vocabulary: int,
    stride_logits: int,
    GROUPS: constexpr,  # of a part
    IDS: constexpr,
    KEPT: constexpr,
    PDL: constexpr,
) -> None:
    i_part, i_row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_group = i_part * GROUPS + tl.arange(0, GROUPS)
    o_id = o_group[:, None] * IDS + tl.arange(0, IDS)[None, :]
    if PDL:
        start_next_then_wait()
    p_l = p_logits + i_row * stride_logits + o_id
    b_best = tl.max(tl.load(p_l, mask=o_id < vocabulary, other=float("-inf")), axis=1)
    b_keys = tl.where(o_group * IDS < vocabulary, rising_key(b_best, o_group), -0x8000000000000000)
    # sixteen threads hold each maximum and would all sort it: in an order of the compiler's own they do not
    b_keys = tl.reshape(b_keys, (GROUPS,), can_reorder=True)
    p_k = p_group_keys + (i_row * tl.num_programs(0) + i_part) * KEPT
    tl.store(p_k + tl.arange(0, KEPT), tl.topk(b_keys, KEPT))


@jit("parts")
def largest_ids_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_group_keys: Pointer,  # int64 [rows, parts, KEPT]
    p_id_keys: Pointer,  # int64 [rows, SHARES, KEPT]
    vocabulary: int,
    stride_logits: int,
    parts: int,
    PARTS: constexpr,  # parts, up to a power of two
    SHARES: constexpr,
    IDS: constexpr,
    KEPT: constexpr,
    PDL: constexpr,
) -> None:
    i_share, i_row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lowest = -0x8000000000000000
    o_key = tl.arange(0, PARTS * KEPT)
    if PDL:
        start_next_then_wait()
    p_k = p_group_keys + i_row * parts * KEPT + o_key
    b_keys = tl.load(p_k, mask=o_key < parts * KEPT, other=lowest)
    if PARTS > 1:
        b_keys = tl.topk(b_keys, KEPT)
    # every program of the row finds all groups and takes its share of them
    b_shares = tl.reshape(b_keys, (SHARES, KEPT // SHARES))
    b_is_mine = tl.arange(0, SHARES)[:, None] == i_share
    b_keys = tl.sum(tl.where(b_is_mine, b_shares, 0), axis=0)
    # where groups are fewer than KEPT, a place without one reads nothing
    b_first = tl.where(b_keys == lowest, vocabulary, place_of_key(b_keys) * IDS)
    o_id = b_first[:, None] + tl.arange(0, IDS)[None, :]
    p_l = p_logits + i_row * stride_logits + o_id
    b_logits = tl.load(p_l, mask=o_id < vocabulary, other=float("-inf"))
    b_keys = tl.where(o_id < vocabulary, rising_key(b_logits, o_id), lowest)
    b_keys = tl.topk(tl.reshape(b_keys, (KEPT // SHARES * IDS,)), KEPT)
    tl.store(p_id_keys + (i_row * SHARES + i_share) * KEPT + tl.arange(0, KEPT), b_keys)


@jit("count")
def largest_of_shares_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_id_keys: Pointer,  # int64 [rows, SHARES, KEPT]
    p_values: Pointer,  # float32 [rows, count]
    p_ids: Pointer,  # int64 [rows, count]
    stride_logits: int,
    count: int,
    SHARES: constexpr,
    KEPT: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_place = tl.arange(0, KEPT)
    kept = o_place < count
    if PDL:
        start_next_then_wait()
    b_keys = tl.load(p_id_keys + i_row * SHARES * KEPT + tl.arange(0, SHARES * KEPT))
    b_id = place_of_key(tl.topk(b_keys, KEPT))
    b_value = tl.load(p_logits + i_row * stride_logits + b_id, mask=kept, other=0.0)
    tl.store(p_values + i_row * count + o_place, b_value, mask=kept)
    tl.store(p_ids + i_row * count + o_place, b_id.to(tl.int64), mask=kept)

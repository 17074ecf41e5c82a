"""Rules out what a mask does not allow: packed masks, a bit a token. Knows no grammar and no sampling.

Once into a new tensor, for who needs the logits as they were; once in place, where only what is ruled out is
written, and by a number that is finite: a row with one that is not is broken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

WORD_BITS = 32
WORDS_PER_PROGRAM = 128
WARPS = 4
RULED_OUT = -1e30
"""Nothing beside any logit, at any temperature; a sum over a whole vocabulary of these is finite."""
ALIGN = 16
"""Floats: kernels that read the result load faster where each row begins on 64 bytes."""


def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    """y[r, t] = logits[r, t] where bit t % 32 of masks[rows[r], t // 32] is set, else -inf.

    logits float32 [R, V], rows of any stride, dense; masks int32 [M, W], dense, of at least V bits; rows
    int64 [R]: of each row its mask, below 0 where all is allowed. Returns float32 [R, V], rows dense.
    ValueError for another shape, dtype, device or stride.
    """
    _require(logits, masks, rows)
    if logits.is_cuda:
        return mask_logits_triton(logits, masks, rows, pdl=True)
    return mask_logits_reference(logits, masks, rows)


def rule_out(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """In place: logits[r, t] = RULED_OUT where bit t % 32 of masks[rows[r], t // 32] is not set.

    Tensors and errors as of mask_logits.
    """
    _require(logits, masks, rows)
    if logits.is_cuda:
        rule_out_triton(logits, masks, rows, pdl=True)
    else:
        rule_out_reference(logits, masks, rows)


def _require(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    if logits.stride(1) != 1:
        raise ValueError(f"logits has strides {list(logits.stride())} but a row must be dense: [any, 1]")
    require_dtype("masks", masks, torch.int32)
    require_shape("masks", masks, None, None)
    require_dense("masks", masks)
    if masks.shape[1] * WORD_BITS < logits.shape[1]:
        raise ValueError(
            f"masks has {masks.shape[1] * WORD_BITS} bits a row but logits has {logits.shape[1]} columns"
        )
    require_dtype("rows", rows, torch.int64)
    require_shape("rows", rows, logits.shape[0])
    require_one_device(logits=logits, masks=masks, rows=rows)


def mask_logits_reference(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    """See mask_logits."""
    return torch.where(_allowed(logits, masks, rows), logits, float("-inf"))


def rule_out_reference(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """See rule_out."""
    logits.masked_fill_(~_allowed(logits, masks, rows), RULED_OUT)


def _allowed(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    words = masks[rows.clamp(min=0)]
    bits = words[:, :, None] >> torch.arange(WORD_BITS, dtype=torch.int32, device=masks.device) & 1
    return bits.flatten(1)[:, : logits.shape[1]].bool() | (rows < 0)[:, None]


def mask_logits_triton(logits: Tensor, masks: Tensor, rows: Tensor, *, pdl: bool) -> Tensor:
    """Launches the kernel of mask_logits; `pdl`: as a programmatic dependent launch."""
    count, vocabulary = logits.shape
    stride = -(-vocabulary // ALIGN) * ALIGN
    out = torch.empty(count, stride, dtype=torch.float32, device=logits.device)
    if count:
        mask_logits_kernel[-(-vocabulary // (WORDS_PER_PROGRAM * WORD_BITS)), count](
            logits,
            masks,
            rows,
            out,
            vocabulary,
            logits.stride(0),
            stride,
            masks.shape[1],
            WORDS=WORDS_PER_PROGRAM,
            BITS=WORD_BITS,
            PDL=pdl,
            num_warps=WARPS,
            launch_pdl=pdl,
        )
    return out[:, :vocabulary]


def rule_out_triton(logits: Tensor, masks: Tensor, rows: Tensor, *, pdl: bool) -> None:
    """Launches the kernel of rule_out; `pdl`: as a programmatic dependent launch."""
    count, vocabulary = logits.shape
    if count:
        rule_out_kernel[-(-vocabulary // (WORDS_PER_PROGRAM * WORD_BITS)), count](
            logits,
            masks,
            rows,
            vocabulary,
            logits.stride(0),
            masks.shape[1],
            RULED_OUT=RULED_OUT,
            WORDS=WORDS_PER_PROGRAM,
            BITS=WORD_BITS,
            PDL=pdl,
            num_warps=WARPS,
            launch_pdl=pdl,
        )


@jit("vocabulary", "words")
def mask_logits_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_masks: Pointer,  # int32 [masks, words]
    p_rows: Pointer,  # int64 [rows]
    p_out: Pointer,  # float32 [rows, vocabulary], rows of stride stride_out
    vocabulary: int,
    stride_logits: int,
    stride_out: int,
    words: int,
    WORDS: constexpr,
    BITS: constexpr,
    PDL: constexpr,
) -> None:
    i_part, i_row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_word = i_part * WORDS + tl.arange(0, WORDS)
    o_bit = tl.arange(0, BITS)[None, :]
    o_token = o_word[:, None] * BITS + o_bit
    # four at once, and of a vocabulary that has no whole number of these the rest one by one
    inside = o_token // 4 < vocabulary // 4
    rest = (o_token < vocabulary) & ~inside
    if PDL:
        start_next_then_wait()
    mask = tl.load(p_rows + i_row)
    # every bit of -1 is set
    b_word = tl.load(p_masks + mask * words + o_word, mask=(o_word < words) & (mask >= 0), other=-1)
    p_l = p_logits + i_row * stride_logits + o_token
    b_logits = tl.where(inside, tl.load(p_l, mask=inside, other=0.0), tl.load(p_l, mask=rest, other=0.0))
    allowed = ((b_word[:, None] >> o_bit) & 1) != 0
    b_out = tl.where(allowed, b_logits, float("-inf"))
    p_o = p_out + i_row * stride_out + o_token
    tl.store(p_o, b_out, mask=inside)
    tl.store(p_o, b_out, mask=rest)


@jit("vocabulary", "words")
def rule_out_kernel(
    p_logits: Pointer,  # float32 [rows, vocabulary], rows of stride stride_logits
    p_masks: Pointer,  # int32 [masks, words]
    p_rows: Pointer,  # int64 [rows]
    vocabulary: int,
    stride_logits: int,
    words: int,
    RULED_OUT: constexpr,
    WORDS: constexpr,
    BITS: constexpr,
    PDL: constexpr,
) -> None:
    i_part, i_row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_word = i_part * WORDS + tl.arange(0, WORDS)
    o_bit = tl.arange(0, BITS)[None, :]
    o_token = o_word[:, None] * BITS + o_bit
    if PDL:
        start_next_then_wait()
    mask = tl.load(p_rows + i_row)
    # every bit of -1 is set
    b_word = tl.load(p_masks + mask * words + o_word, mask=(o_word < words) & (mask >= 0), other=-1)
    refused = ((b_word[:, None] >> o_bit) & 1) == 0
    b_out = tl.full([WORDS, BITS], RULED_OUT, tl.float32)
    tl.store(p_logits + i_row * stride_logits + o_token, b_out, mask=refused & (o_token < vocabulary))

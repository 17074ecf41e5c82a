"""The small ops of a pass at the shapes of Qwen3.8-27B, each beside the time to read and write its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.gpu_timing import READ_BYTES_PER_S, Figure, time_us
from bench.sequence_shapes import CHANNELS, HEAD_DIM, HEADS, KV_HEADS, gdn_pass
from bench.shapes_27b import EPS, HIDDEN, VALUE_HEADS, VOCABULARY
from sparkle.kernels.gdn_prompt_inputs import gdn_prompt_inputs
from sparkle.kernels.largest import largest
from sparkle.kernels.mask_logits import mask_logits
from sparkle.kernels.narrow_linear import narrow_linear
from sparkle.kernels.norm_quant import add_rms_norm_both
from sparkle.kernels.rotary_table import rotary_table
from sparkle.kernels.sigmoid_mul_quant import sigmoid_mul_quantise

ROWS = (16, 8192)
GATE_WEIGHTS = 100
"""So many layers' gate weights that none is in the cache when its turn comes."""


def figure(case: str, launch: Callable[[int], object], moved_bytes: float, count: int = 24) -> Figure:
    """One op; the floor is to move its bytes once."""
    value, spread = time_us(launch, count)
    floor = moved_bytes / READ_BYTES_PER_S * 1e6
    return Figure(case=case, value=value, unit="us", floor=floor, spread=spread)


def row_ops(rows: int) -> Iterator[Figure]:
    """Norm in both forms, gates, attention's gate, rotary table."""
    hidden = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(HIDDEN, device="cuda")
    both = partial(add_rms_norm_both, hidden, hidden[None], weight, eps=EPS)
    yield figure(f"norm_both_{rows}", lambda _: both(), 9 * hidden.numel())
    columns = 2 * VALUE_HEADS
    weights = torch.randn(GATE_WEIGHTS, columns, HIDDEN, dtype=torch.bfloat16, device="cuda").unbind(0)
    moved = 2 * (columns + rows) * HIDDEN + 4 * rows * columns
    yield figure(
        f"narrow_linear_{rows}",
        lambda i: narrow_linear(hidden, weights[i % GATE_WEIGHTS]),
        moved,
        GATE_WEIGHTS,
    )
    x = torch.randn(rows, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    wide = torch.randn(rows, 2 * (HEADS + KV_HEADS), HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    gated = partial(sigmoid_mul_quantise, x, wide[:, -HEADS:])
    yield figure(f"sigmoid_mul_quantise_{rows}", lambda _: gated(), 5 * x.numel())
    positions = torch.arange(rows, device="cuda").expand(3, rows)
    table = partial(rotary_table, positions, theta=1e7, rotary_dim=64, sections=(11, 11, 10))
    yield figure(f"rotary_table_{rows}", lambda _: table(), rows * (24 + 256))


def prompt_inputs(rows: int) -> Figure:
    """Convolution and gates of one prompt."""
    qkv, ba, conv, gates, memories, starts, slots = gdn_pass(1, rows, layers=1)
    op = partial(gdn_prompt_inputs, qkv, ba.float(), conv.float(), gates, memories[0], starts, slots)
    moved = rows * (4 * CHANNELS + 16 * VALUE_HEADS)
    return figure(f"gdn_prompt_inputs_{rows}", lambda _: op(), moved)


def largest_of(rows: int, count: int) -> Figure:
    """Of the logits that the product in front has left in the cache, as far as they fit."""
    logits = torch.randn(rows, VOCABULARY, device="cuda")
    return figure(f"largest_{rows}_{count}", lambda _: largest(logits, count), 4 * logits.numel())


def masked(rows: int) -> Figure:
    """Each row by a mask of its own."""
    logits = torch.randn(rows, VOCABULARY, device="cuda")
    masks = torch.randint(-(2**31), 2**31, (rows, VOCABULARY // 32), dtype=torch.int32, device="cuda")
    which = torch.arange(rows, device="cuda")
    moved = 8 * logits.numel() + 4 * masks.numel()
    return figure(f"mask_logits_{rows}", lambda _: mask_logits(logits, masks, which), moved)


def small_ops() -> Iterator[Figure]:
    """Every case."""
    for rows in ROWS:
        yield from row_ops(rows)
        yield prompt_inputs(rows)
    for rows in (1, 16, 128):
        yield masked(rows)
        for count in (1, 20, 64):
            yield largest_of(rows, count)

"""Times the sequence ops over the shapes of Qwen3.8-27B on one H200, each beside its floor.

    python -m bench.sequence_ops --commit $(git rev-parse --short HEAD)

One layer's op a case, many layers' caches in turn, so that none is in the chip's cache. The floor is the time
to read and write what must be, once, at the bandwidth a plain reduction reaches; of attention over prompts,
that of the products at the data sheet's rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from bench.floors import BF16_FLOPS
from bench.gpu_timing import READ_BYTES_PER_S, Figure, print_figures, time_us
from bench.sequence_shapes import (
    CONTEXT_TOKENS,
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    KV_HEADS,
    STATE_DIM,
    VALUE_HEADS,
    gdn_pass,
    paged_pass,
    projection,
    rule_of,
)
from sparkle.kernels.gdn_chunk import gdn_chunk
from sparkle.kernels.gdn_step import gdn_step
from sparkle.kernels.prefill_attention import prefill_attention
from sparkle.kernels.qkv_write import qkv_write
from sparkle.kernels.verify_attention import verify_attention

E4M3 = torch.float8_e4m3fn
PASSES = ((1, 1), (1, 16), (8, 1), (8, 8))  # sequences, tokens of each
SCALE = HEAD_DIM**-0.5


def attention(sequences: int, width: int, kind: torch.dtype) -> Figure:
    """Few tokens over a long cache."""
    layers = 8 if sequences == 1 else 2
    query, gate, caches, table, starts, contexts = paged_pass(sequences, width, kind, layers=layers)
    value, spread = time_us(
        lambda i: verify_attention(
            query, *caches[i % layers], table, starts, contexts, width=width, scale=SCALE, gate=gate
        ),
        16,
    )
    read = sequences * CONTEXT_TOKENS * 2 * KV_HEADS * HEAD_DIM * kind.itemsize
    name = "e4m3" if kind == E4M3 else "bf16"
    return _memory_bound(f"attention_{sequences}x{width}_33k_{name}", value, spread, read)


def recurrent(sequences: int, width: int) -> Figure:
    """Gated DeltaNet, all but one of the last pass's tokens accepted."""
    layers = 24 if sequences == 1 else 8
    qkv, ba, conv, gates, memories, starts, slots = gdn_pass(sequences, width, layers=layers)
    accepted = torch.full_like(slots, max(1, width - 1))
    value, spread = time_us(
        lambda i: gdn_step(qkv, ba, conv, gates, memories[i % layers], starts, slots, accepted, width=width),
        24,
    )
    moved = 2 * sequences * VALUE_HEADS * STATE_DIM**2 * 4
    return _memory_bound(f"gdn_step_{sequences}x{width}", value, spread, moved)


def written(rows: int) -> Figure:
    """Norms, rotary, cache write."""
    arguments = projection(rows)
    value, spread = time_us(lambda _: qkv_write(*arguments, eps=1e-6), 16)
    moved = rows * (4 * HEADS + 2 * 3 * KV_HEADS) * HEAD_DIM
    return _memory_bound(f"qkv_write_{rows}", value, spread, moved)


def prompt_rule(rows: int) -> Figure:
    """The delta rule over a prompt."""
    rule, states, starts, slots = rule_of(rows)
    value, spread = time_us(lambda _: gdn_chunk(*rule, states, starts, slots), 2)
    moved = rows * (2 * KEY_HEADS + 2 * VALUE_HEADS) * STATE_DIM * 2
    return _memory_bound(f"gdn_chunk_{rows}", value, spread, moved)


def prompt_attention(rows: int, context: int) -> Figure:
    """Attention over a prompt's last rows."""
    query, _, caches, table, _, _ = paged_pass(1, rows, E4M3, layers=1, context_tokens=context)
    value, spread = time_us(
        lambda _: prefill_attention(query, *caches[0], table[0], context=context, scale=SCALE), 2
    )
    floor = 4 * HEADS * HEAD_DIM * rows * (context + rows / 2) / BF16_FLOPS * 1e6
    case = f"prefill_attention_{rows}_behind_{context}"
    return Figure(case=case, value=value, unit="us", floor=floor, spread=spread)


def figures() -> Iterator[Figure]:
    """Every case."""
    for shape in PASSES:
        yield attention(*shape, E4M3)
    yield attention(1, 16, torch.bfloat16)
    for shape in PASSES:
        yield recurrent(*shape)
    for rows in (1, 16, 64, 8192):
        yield written(rows)
    for rows in (8192, 33_024):
        yield prompt_rule(rows)
    for rows, context in ((8192, 0), (32_768, 0), (8192, 24_576)):
        yield prompt_attention(rows, context)


def _memory_bound(case: str, value: float, spread: tuple[float, float], moved_bytes: float) -> Figure:
    floor = moved_bytes / READ_BYTES_PER_S * 1e6
    return Figure(case=case, value=value, unit="us", floor=floor, spread=spread)


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    print_figures(figures(), commit=options.commit)


if __name__ == "__main__":
    main()

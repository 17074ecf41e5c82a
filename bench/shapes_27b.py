"""The products of Qwen3.8-27B with random weights, for the benches. Knows no timing."""

from __future__ import annotations

import torch

from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, quantise_rows

HIDDEN = 5120
INTERMEDIATE = 17408
VOCABULARY = 248320
VALUE_HEADS = 48
EPS = 1e-6
PRODUCTS = {
    "gdn_in": (16384, HIDDEN),
    "attention_in": (14336, HIDDEN),
    "out": (HIDDEN, VALUE_HEADS * GROUP),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
"""[N, K] of each product of a layer."""
ADDED_IN_PARTS = ("out", "down")
"""The products after which a norm adds the parts of a split."""
ROTATED_BYTES = 600e6
"""Several times the cache."""


def random_rows(rows: int, columns: int) -> Fp8Rows:
    """A quantised activation of normal values."""
    return quantise_rows(torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda"))


def random_blocks(columns: int, depth: int) -> Fp8Blocks:
    """A weight of normal values, drawn in the form it is stored in."""
    values = torch.empty(columns, depth, dtype=torch.float8_e4m3fn, device="cuda")
    for start in range(0, columns, 1 << 14):
        stop = min(start + (1 << 14), columns)
        values[start:stop] = torch.randn(stop - start, depth, dtype=torch.bfloat16, device="cuda")
    scales = (1 + torch.rand(-(-columns // GROUP), depth // GROUP, device="cuda")) / depth**0.5
    return Fp8Blocks(values, scales)


def rotation(columns: int, depth: int) -> list[Fp8Blocks]:
    """So many weights of one shape that none is in the cache when its turn comes."""
    return [random_blocks(columns, depth) for _ in range(max(1, round(ROTATED_BYTES / (columns * depth))))]

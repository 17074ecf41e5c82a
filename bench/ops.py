"""Times the dense ops over the shapes of Qwen3.8-27B on an H200, each beside its floor and torch's scaled_mm.

    python -m bench.ops --commit $(git rev-parse --short HEAD)

The floor of few rows is the time to read the weights once at the bandwidth a plain reduction reaches; of many
rows, that of the products at the data sheet's FP8 rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.dense_pass import dense_pass
from bench.gpu_timing import FP8_FLOPS, READ_BYTES_PER_S, Figure, print_figures, time_us
from bench.shapes_27b import (
    ADDED_IN_PARTS,
    EPS,
    HIDDEN,
    INTERMEDIATE,
    PRODUCTS,
    VALUE_HEADS,
    VOCABULARY,
    random_blocks,
    random_rows,
    rotation,
)
from bench.small_ops import small_ops
from sparkle.kernels.fp8_linear import fp8_linear, fp8_linear_parts, fp8_linear_scaled_mm
from sparkle.kernels.gate_up import gate_up_silu_quantise
from sparkle.kernels.lm_head import lm_head_greedy, lm_head_logits
from sparkle.kernels.norm_quant import add_rms_norm_quantise, gated_rms_norm_quantise
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, quantise_rows
from sparkle.kernels.silu_mul_quant import silu_mul_quantise

FEW_ROWS = (1, 16, 64, 128)
MANY_ROWS = (16, 64, 128, 256, 4096, 16384)


def product_figure(
    case: str, op: Callable[[Fp8Rows, Fp8Blocks], object], rows: int, weights: list[Fp8Blocks], count: int
) -> Figure:
    """One product over rotating weights."""
    columns, depth = weights[0].values.shape
    x = random_rows(rows, depth)
    value, spread = time_us(lambda index: op(x, weights[index % len(weights)]), count)
    floor_s = max(columns * depth / READ_BYTES_PER_S, 2 * rows * columns * depth / FP8_FLOPS)
    return Figure(case=case, value=value, unit="us", floor=floor_s * 1e6, spread=spread)


def products() -> Iterator[Figure]:
    """Each product of a layer with few rows, and by scaled_mm with few and many."""
    for name, shape in PRODUCTS.items():
        weights = rotation(*shape)
        ours = fp8_linear_parts if name in ADDED_IN_PARTS else fp8_linear
        theirs = partial(fp8_linear_scaled_mm, dtype=torch.bfloat16)
        for rows in FEW_ROWS:
            yield product_figure(f"{name}_{rows}", ours, rows, weights, 24)
            if name == "gate_up":
                # as the engine has it
                yield product_figure(f"gate_up_silu_{rows}", gate_up_silu_quantise, rows, weights, 24)
        for rows in MANY_ROWS:
            yield product_figure(f"{name}_{rows}_scaled_mm", theirs, rows, weights, 24 if rows < 1024 else 4)


def head() -> Iterator[Figure]:
    """The output product with and without logits."""
    weights = [random_blocks(VOCABULARY, HIDDEN)]
    for rows in FEW_ROWS:
        for name, op in (("greedy", lm_head_greedy), ("logits", lm_head_logits)):
            head_op = partial(op, vocabulary=VOCABULARY)
            yield product_figure(f"lm_head_{name}_{rows}", head_op, rows, weights, 4)


def row_figure(case: str, launch: Callable[[], object], num_bytes: int) -> Figure:
    """An op on rows, whose floor is to read and write its memory once."""
    value, spread = time_us(lambda _: launch(), 24)
    return Figure(case=case, value=value, unit="us", floor=num_bytes / READ_BYTES_PER_S * 1e6, spread=spread)


def row_ops() -> Iterator[Figure]:
    """The ops on rows: in a decode pass they run out of the cache, in a prefill out of memory."""
    weight = torch.randn(HIDDEN, dtype=torch.bfloat16, device="cuda")
    lane = torch.randn(GROUP, device="cuda")
    for rows in (1, 16, 64, 8192):
        hidden = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        parts = torch.randn(6, rows, HIDDEN, device="cuda")
        gate_up = torch.randn(rows, 2 * INTERMEDIATE, dtype=torch.bfloat16, device="cuda")
        x = torch.randn(rows, VALUE_HEADS, GROUP, dtype=torch.bfloat16, device="cuda")
        norm = partial(add_rms_norm_quantise, hidden, eps=EPS)
        yield row_figure(f"norm_quantise_{rows}", partial(norm, hidden[None], weight), 7 * hidden.numel())
        yield row_figure(f"norm_quantise_6_parts_{rows}", partial(norm, parts, weight), 29 * hidden.numel())
        yield row_figure(
            f"silu_mul_quantise_{rows}", partial(silu_mul_quantise, gate_up), 5 * gate_up.numel() // 2
        )
        gated = partial(gated_rms_norm_quantise, x, x, lane, eps=EPS)
        yield row_figure(f"gated_norm_quantise_{rows}", gated, 5 * x.numel())
        yield row_figure(f"quantise_{rows}", partial(quantise_rows, hidden), 3 * hidden.numel())


def main() -> None:
    """Measures everything and prints it."""
    groups = {
        "dense_pass": dense_pass,
        "products": products,
        "head": head,
        "row_ops": row_ops,
        "small_ops": small_ops,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    parser.add_argument("--only", nargs="*", choices=list(groups), default=list(groups))
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.only:
        figures += groups[name]()
        torch.cuda.empty_cache()
    print_figures(figures, commit=options.commit)


if __name__ == "__main__":
    main()

"""Random inputs of the FP8 ops, with traps in them: a row of zeros, a row far larger than the others."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows, quantise_blocks_reference, quantise_rows_reference

CPU = torch.device("cpu")


def random_matrix(
    rows: int, columns: int, *, seed: int, dtype: torch.dtype = torch.bfloat16, device: torch.device = CPU
) -> Tensor:
    """Normal values [rows, columns]; of three rows or more the second is 1,000 times larger, the third 0."""
    x = torch.randn(rows, columns, generator=torch.Generator(device).manual_seed(seed), device=device)
    if rows >= 3:
        x[1] *= 1000.0
        x[2] = 0.0
    return x.to(dtype)


def random_rows(rows: int, columns: int, *, seed: int, device: torch.device = CPU) -> Fp8Rows:
    """A quantised activation."""
    return quantise_rows_reference(random_matrix(rows, columns, seed=seed, device=device))


def random_blocks(rows: int, columns: int, *, seed: int, device: torch.device = CPU) -> Fp8Blocks:
    """A quantised weight."""
    values = torch.randn(rows, columns, generator=torch.Generator(device).manual_seed(seed), device=device)
    return quantise_blocks_reference(values / columns**0.5)

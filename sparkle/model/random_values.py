"""What random weights are drawn from: for each kind of tensor 256 values, all equally likely. Knows no torch.

A random byte is then a random value, whatever its form, so that a file of random bytes and a table make a
checkpoint, and a GPU fills its memory as fast. Sizes are such that activations stay of order 1: a product
keeps the size of its input, and what is added to the residual stream is a fraction of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

LEVELS = 256
Values = tuple[float, ...]
"""LEVELS values, rising."""

FP8_SPREAD = 64.0
"""Standard deviation of the FP8 values: the largest come near e4m3's 448, few come near its smallest."""

ADDED_SHARE = 0.3
"""How much smaller a matrix is whose product is added to the residual stream."""


def normal(spread: float, *, mean: float = 0.0) -> Values:
    """Quantiles of a normal distribution."""
    return _quantiles(NormalDist(mean, spread).inv_cdf)


def uniform(low: float, high: float) -> Values:
    """Quantiles of a uniform distribution."""
    return _quantiles(lambda share: low + (high - low) * share)


def matrix_values(columns: int) -> Values:
    """Entries of a matrix that is not quantised."""
    return normal(1 / math.sqrt(columns))


def fp8_values() -> Values:
    """FP8 entries of a matrix, to be scaled by `scale_values`."""
    return normal(FP8_SPREAD)


def scale_values(columns: int, *, added: bool = False) -> Values:
    """Scales of the blocks of a matrix; they differ, so that one in a wrong place shows."""
    size = (ADDED_SHARE if added else 1.0) / (FP8_SPREAD * math.sqrt(columns))
    return uniform(0.75 * size, 1.25 * size)


def embedding_values() -> Values:
    return normal(1.0)


def norm_values() -> Values:
    """Weights of a norm, to which 1 is added."""
    return normal(0.1)


def gated_norm_values() -> Values:
    """Weights of the norm before the output gate, to which nothing is added."""
    return normal(0.1, mean=1.0)


def convolution_values() -> Values:
    return normal(0.5)


def a_log_values() -> Values:
    """As the architecture starts them: decay rates from 1 to 16."""
    return tuple(math.log(rate) for rate in uniform(1.0, 16.0))


def dt_bias_values() -> Values:
    """As the architecture starts them: softplus(dt_bias) from 0.001 to 0.1, memories of 1 to 1000 tokens."""
    steps = (math.exp(value) for value in uniform(math.log(0.001), math.log(0.1)))
    return tuple(math.log(math.expm1(step)) for step in steps)


def _quantiles(inverse: Callable[[float], float]) -> Values:
    return tuple(inverse((level + 0.5) / LEVELS) for level in range(LEVELS))

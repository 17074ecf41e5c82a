"""How many tokens passes keep, where nothing but the mean is known. Knows no model."""

from __future__ import annotations

import random


def kept_counts(mean: float, most: int, number: int, *, seed: int) -> list[int]:
    """`number` counts from 1 to `most`, by chance, whose mean is `mean` but for rounding their sum.

    ValueError where `mean` is not from 1 to `most`.
    """
    if not 1 <= mean <= most:
        raise ValueError(f"mean is {mean} but must be 1 to {most}")
    order = random.Random(seed)
    share = (mean - 1) / max(1, most - 1)
    counts = [1 + sum(order.random() < share for _ in range(most - 1)) for _ in range(number)]
    missing = round(mean * number) - sum(counts)
    step = 1 if missing > 0 else -1
    while missing:
        place = order.randrange(number)
        if 1 <= counts[place] + step <= most:
            counts[place] += step
            missing -= step
    return counts

"""Times whole passes with other settings of the products of few rows; kernels/tuning.py holds what won.

    python -m bench.ring_sweep --commit $(git rev-parse --short HEAD)

A product alone tells little: where its programs lie, and what of it is done while another kernel ends, follow
from its neighbours. The passes are those of bench.engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from unittest.mock import patch

from bench.engine import CONTEXT_TOKENS, PASSES, REPLAYS, SEQUENCES
from bench.engine_model import Loaded
from bench.gpu_timing import Figure, print_figures, time_us
from sparkle.kernels.tuning import RINGS

FEW = ("verify_1x16_33k", "plain_1x1_33k")
MANY = ("verify_8x8_33k",)
Rings = dict[tuple[int, int], tuple[int, int, int, int]]
TRIED: dict[str, tuple[Rings, tuple[str, ...]]] = {
    "as_it_is": ({}, FEW + MANY),
    "late": ({(1, 16): (5, 5, 4, 0)}, FEW),
    "earlier": ({(1, 16): (5, 5, 4, 5)}, FEW),
    "gate_up_early": ({(2, 16): (4, 2, 4, 3)}, FEW),
    "gate_up_six_stages": ({(2, 16): (6, 4, 4, 0)}, FEW),
    "gate_up_six_stages_early": ({(2, 16): (6, 4, 4, 3)}, FEW),
    "early": ({(1, 64): (4, 4, 4, 3)}, MANY),
}
"""By name: what replaces entries of RINGS, and the cases that it concerns."""


def figures() -> Iterator[Figure]:
    """Every trial's passes."""
    model = Loaded.load(slots=SEQUENCES, max_tokens=CONTEXT_TOKENS + 64)
    model.fill()
    for name, (changed, cases) in TRIED.items():
        for case in cases:
            batch = model.verify_batch(*PASSES[case], CONTEXT_TOKENS)
            with patch.dict(RINGS, changed):
                value, (low, high) = time_us(
                    lambda _: model.decoder.verify(batch, model.cache),  # noqa: B023
                    1,
                    replays=REPLAYS,
                )
            spread = (low / 1e3, high / 1e3)
            yield Figure(case=f"{case}_{name}", value=value / 1e3, unit="ms", floor=None, spread=spread)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    print_figures(figures(), commit=parser.parse_args().commit)


if __name__ == "__main__":
    main()

"""Times a checkpoint's way onto an H200, beside the time that a copy of as many pinned bytes takes.

    sparkle checkpoint random --shape 27b --out /tmp/random-27b
    python -m bench.loading --model /tmp/random-27b --commit $(git rev-parse --short HEAD)

The files are read once before, so that the disk has no part in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench.gpu_timing import READ_BYTES_PER_S, Figure, print_figures
from sparkle.model.config import read_config
from sparkle.model.fp8_loader import load_fp8_weights
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b

DEVICE = torch.device("cuda")
ROUNDS = 5
COPIED_BYTES = 1 << 30


def seconds(action: Callable[[], object]) -> float:
    """Wall time until the GPU has done it too."""
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - started_s


def rounds(action: Callable[[], object]) -> tuple[float, tuple[float, float]]:
    """Median and bounds."""
    times_s = [seconds(action) for _ in range(ROUNDS)]
    return statistics.median(times_s), (min(times_s), max(times_s))


def bus_bytes_per_s() -> float:
    """How fast pinned memory is copied to the GPU."""
    host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    place = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=DEVICE)
    return COPIED_BYTES / rounds(lambda: place.copy_(host, non_blocking=True))[0]


def loading(directory: Path) -> Iterator[Figure]:
    """The first load, with compilation and pinning, and further ones."""
    config = read_config(directory)
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    read_bytes = 0

    def load() -> None:
        nonlocal read_bytes
        read_bytes = load_fp8_weights(directory, config, DEVICE)[1].read_bytes

    first_s = seconds(load)
    value, spread = rounds(load)
    floor_s = read_bytes / bus_bytes_per_s()
    case = f"load_{read_bytes / 1e9:.1f}_gb"
    yield Figure(case=f"{case}_first", value=first_s, unit="s", floor=floor_s, spread=(first_s, first_s))
    yield Figure(case=case, value=value, unit="s", floor=floor_s, spread=spread)


def drawing() -> Figure:
    """Random weights of the 27B shapes, drawn on the GPU."""
    written_bytes = 0

    def draw() -> None:
        nonlocal written_bytes
        before = torch.cuda.memory_allocated()
        weights = random_fp8_weights(shape_27b(), DEVICE, 0)
        written_bytes = torch.cuda.memory_allocated() - before
        del weights

    value, spread = rounds(draw)
    floor_s = written_bytes / READ_BYTES_PER_S  # memory takes as much as it gives
    return Figure(case="random_weights_27b", value=value, unit="s", floor=floor_s, spread=spread)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    parser.add_argument("--commit", required=True, help="what is measured; the machine has no repository")
    arguments = parser.parse_args()
    torch.zeros(1, device=DEVICE)  # the context
    print_figures([*loading(arguments.model), drawing()], commit=arguments.commit)


if __name__ == "__main__":
    main()

"""Times what runs on the GPU: many launches captured in one CUDA graph, replayed, median of the replays.

A launch from Python costs more than most kernels, so nothing is timed outside a graph. Knows no op.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from bench.record import row
from sparkle.kernels.ops import divide_memory_alike

READ_BYTES_PER_S = 4.6e12
"""What a plain reduction over 8 GiB reads on an H200."""
FP8_FLOPS = 1.979e15
"""The data sheet's dense FP8 rate."""
WARM_REPLAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure."""

    case: str
    value: float
    unit: str
    floor: float | None
    """The best that the hardware allows, in the same unit: of times the least, of rates the most."""
    spread: tuple[float, float]
    """The 10th and the 90th percentile of the replays."""

    @property
    def share(self) -> float | None:
        """How much of what the hardware allows was reached; None without a floor."""
        if self.floor is None:
            return None
        return self.value / self.floor if self.unit.endswith("/s") else self.floor / self.value


def time_us(
    launch: Callable[[int], object], count: int, *, replays: int = 9
) -> tuple[float, tuple[float, float]]:
    """Median microseconds of `launch(i)` in a graph of `count` of them, i from 0 on, and the spread."""
    divide_memory_alike()  # as the engine does
    launch(0)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            launch(index)
    median, (low, high) = replays_us(graph.replay, replays=replays)
    return median / count, (low / count, high / count)


def replays_us(replay: Callable[[], None], *, replays: int) -> tuple[float, tuple[float, float]]:
    """Median microseconds of what `replay` starts, on the GPU's own clock, and the spread."""
    pairs = [(_event(), _event()) for _ in range(WARM_REPLAYS + replays)]
    for start, stop in pairs:
        start.record()
        replay()
        stop.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) * 1e3 for start, stop in pairs[WARM_REPLAYS:])
    return times[len(times) // 2], (times[len(times) // 10], times[len(times) * 9 // 10])


def kernel_times(launch: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Of one replay: each kernel's name, how often it ran and its microseconds in all, the longest first.

    Kernels that overlap count twice, and gaps do not count.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    averages: Any = profile.key_averages()  # half typed
    found = [(str(event.key), int(event.count), float(event.device_time_total)) for event in averages]
    return sorted((event for event in found if event[2] > 0), key=lambda event: -event[2])


def print_figures(figures: Iterable[Figure], *, commit: str) -> None:
    """A table, then each figure as a row for bench/results: one line of JSON.

    Where a case fails, those measured before it have their rows.
    """
    measured: list[Figure] = []
    try:
        for figure in figures:
            measured.append(figure)
            low, high = figure.spread
            share = figure.share
            floor = "" if share is None else f"  floor {figure.floor:9.2f}  {100 * share:5.1f} %"
            line = f"{figure.case:32s} {figure.value:10.2f} {figure.unit}{floor}  spread {high - low:.2f}"
            print(line, flush=True)
    finally:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        for figure in measured:
            made = row(
                figure.case, figure.value, figure.unit, figure.floor, figure.spread, gpu=gpu, commit=commit
            )
            print(json.dumps(made), flush=True)


def _event() -> torch.cuda.Event:
    # torch has no types for its events
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

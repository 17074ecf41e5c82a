"""Times what runs on the GPU: many launches captured in one CUDA graph, replayed, median of the replays.

A launch from Python costs more than most kernels, so nothing is timed outside a graph. Knows no op.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version

import torch

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
    floor: float
    """The least the hardware allows, in the same unit."""
    spread: float
    """The 90th less the 10th percentile of the replays."""


def time_us(launch: Callable[[int], object], count: int, *, replays: int = 9) -> tuple[float, float]:
    """Median microseconds of `launch(i)` in a graph of `count` of them, i from 0 on, and the spread."""
    launch(0)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            launch(index)
    pairs = [(_event(), _event()) for _ in range(WARM_REPLAYS + replays)]
    for start, stop in pairs:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) * 1e3 / count for start, stop in pairs[WARM_REPLAYS:])
    return times[len(times) // 2], times[len(times) * 9 // 10] - times[len(times) // 10]


def print_figures(figures: Iterable[Figure], *, commit: str) -> None:
    """A table, then each figure as a row for bench/results: one line of JSON."""
    figures = list(figures)
    for figure in figures:
        share = 100 * figure.floor / figure.value
        print(
            f"{figure.case:32s} {figure.value:10.2f} {figure.unit}  floor {figure.floor:9.2f}  "
            f"{share:5.1f} %  spread {figure.spread:.2f}"
        )
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "triton")}}
    where = {
        "machine": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    for figure in figures:
        print(json.dumps({**asdict(figure), **where}))


def _event() -> torch.cuda.Event:
    # torch has no types for its events
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

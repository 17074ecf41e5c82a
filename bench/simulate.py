"""Replays arrivals against the scheduler and against the peers' orders, in simulated time on an H200.

    python -m bench.simulate [--load soar | --trace FILE] [--kept 5] [--faster 2] [--gpus 2]
    python -m bench.simulate --kept 3 --record
    python -m bench.simulate --load soar --faster 8 --plan p0=2 p2=16

All orders run the same passes, in the time of `pass_times`, with the same slots and memory, and drafts: with
seven guesses a pass writes `--kept` tokens an answer. What differs is who goes first, and how much is read at
once. For each class of jobs: seconds to the first token, to the last one, and the longest between two of an
answer, medians over the seeds. With `--plan`: the fewest GPUs on which 95 % of each class have their first
token within so many seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench.arrivals import LOADS, Arrival, faster, given
from bench.first_come import FirstCome, Reading
from bench.pass_times import fitted, latest
from bench.record import RESULTS, record
from bench.simulated_drafts import GUESSES, SimulatedDrafts, no_guesses
from bench.simulated_gpu import PassMs, Planner, Served, percentile, replay
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.settings import GPU_CHUNK_TOKENS, GPU_PASS_TOKENS
from sparkle.schemas.priority import PriorityClass

SLOTS = 64
PAGE_TOKENS = 64
NUM_PAGES = 2_800_000 // PAGE_TOKENS
"""docs/speed.md: what is left beside weights, slots and workspace."""
VLLM_PASS_TOKENS, SGLANG_PASS_TOKENS = 16_384, 8_192
"""Their defaults on this GPU."""
SEEDS = (1, 2, 3)
MEASURED: Mapping[str, Callable[[Served], float]] = {
    "first": lambda job: job.waited_s,
    "last": lambda job: job.total_s,
    "gap": lambda job: job.longest_gap_s,
}
PERCENTS = (50, 95, 99)
TAIL_PERCENT = 95
"""Of plans, and of the rows that are kept."""
MOST_GPUS = 64

Classes = dict[PriorityClass, list[Served]]


def orders(pass_tokens: int, chunk_tokens: int) -> dict[str, Callable[[], Planner]]:
    """What is compared, by name.

    `first_come` has the scheduler's full passes, of `pass_tokens` rows, without its order. The peers serve
    who came first; vLLM reads prompts beside answers, SGLang in passes of their own.
    """
    return {
        "sparkle": lambda: Scheduler(
            num_slots=SLOTS,
            num_pages=NUM_PAGES,
            page_tokens=PAGE_TOKENS,
            pass_tokens=pass_tokens,
            chunk_tokens=chunk_tokens,
        ),
        "first_come": lambda: _first_come(pass_tokens, Reading.BESIDE),
        "vllm": lambda: _first_come(VLLM_PASS_TOKENS, Reading.BESIDE),
        "sglang": lambda: _first_come(SGLANG_PASS_TOKENS, Reading.ALONE),
    }


def by_class(jobs: Iterable[Served]) -> Classes:
    """Those of each class that has any, the shortest class first."""
    found: Classes = {}
    for job in jobs:
        found.setdefault(job.arrival.priority, []).append(job)
    return dict(sorted(found.items()))


def figures(rounds: Sequence[Classes]) -> dict[str, list[float]]:
    """Of each class and figure, such as p0_first_p95_s, the seconds in each round that has the class."""
    found: dict[str, list[float]] = {}
    for classes in rounds:
        for priority, jobs in classes.items():
            for what, seconds in MEASURED.items():
                values = [seconds(job) for job in jobs]
                for percent in PERCENTS:
                    case = f"{priority}_{what}_p{percent}_s"
                    found.setdefault(case, []).append(percentile(values, percent))
    return found


def gpus_needed(
    arrivals: Sequence[Arrival],
    planner: Callable[[], Planner],
    pass_ms: PassMs,
    targets_s: Mapping[PriorityClass, float],
    drafts: Callable[[], SimulatedDrafts] = no_guesses,
) -> int | None:
    """The fewest GPUs on which each class's first tokens are in time; None where MOST_GPUS are too few."""

    def enough(gpus: int) -> bool:
        classes = by_class(replay(arrivals, planner, pass_ms, drafts, gpus=gpus))
        return all(
            percentile([job.waited_s for job in classes[name]], TAIL_PERCENT) <= target_s
            for name, target_s in targets_s.items()
            if name in classes
        )

    # more GPUs than jobs change nothing
    most = min(MOST_GPUS, len(arrivals))
    return next((gpus for gpus in range(1, most + 1) if enough(gpus)), None)


def targets(texts: Iterable[str]) -> dict[PriorityClass, float]:
    """From such as `p0=0.5`. Raises ValueError where a class or a number is none."""
    parts = (text.partition("=") for text in texts)
    return {PriorityClass(name): float(seconds) for name, _, seconds in parts}


def print_table(order: str, found: Mapping[str, Sequence[float]]) -> None:
    """A line for each class: medians over the rounds."""
    columns = len(MEASURED) * len(PERCENTS)
    cells = list(found.items())
    for place in range(0, len(cells), columns):
        priority = cells[place][0].partition("_")[0]
        line = "".join(f"{_median(values):11.3f}" for _, values in cells[place : place + columns])
        print(f"{order:12}{priority}{line}", flush=True)


def keep(name: str, order: str, found: Mapping[str, Sequence[float]]) -> None:
    """Rows of bench/results: the tails alone."""
    for case, values in found.items():
        if case.endswith(f"_p{TAIL_PERCENT}_s"):
            full = f"simulated_{name}_{order}_{case}"
            record(full, _median(values), "s", None, (min(values), max(values)), file="simulate")


def _first_come(pass_tokens: int, reading: Reading) -> Planner:
    return FirstCome(
        num_slots=SLOTS,
        num_pages=NUM_PAGES,
        page_tokens=PAGE_TOKENS,
        pass_tokens=pass_tokens,
        reading=reading,
    )


def _median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def _traces(options: argparse.Namespace) -> dict[str, list[list[Arrival]]]:
    """Of each load its rounds."""
    if options.trace:
        found = {options.trace.stem: [given(options.trace)]}
    else:
        names = [options.load] if options.load else list(LOADS)
        found = {name: [LOADS[name](seed) for seed in SEEDS] for name in names}
    return {name: [faster(trace, options.faster) for trace in rounds] for name, rounds in found.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--load", choices=LOADS, help="one of them; all where it is left out")
    what.add_argument("--trace", type=Path, help="a file of JSON lines, as bench.arrivals has it")
    parser.add_argument("--faster", type=float, default=1.0, help="arrivals so many times as often")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--kept",
        type=float,
        default=1.0,
        help=f"tokens that a pass with {GUESSES} guesses writes of an answer",
    )
    parser.add_argument("--pass-tokens", type=int, default=GPU_PASS_TOKENS, help="sparkle's rows of a pass")
    parser.add_argument("--chunk-tokens", type=int, default=GPU_CHUNK_TOKENS, help="of these beside answers")
    parser.add_argument("--plan", nargs="+", metavar="CLASS=SECONDS", help="count GPUs instead")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results")
    options = parser.parse_args()
    set_ = (options.faster, options.gpus, options.pass_tokens, options.chunk_tokens)
    if options.record and (options.trace or set_ != (1.0, 1, GPU_PASS_TOKENS, GPU_CHUNK_TOKENS)):
        parser.error("rows are kept of the named loads as they are; leave out what changes them")
    return options


def main() -> None:
    """Simulate and print."""
    options = _options()
    files = (RESULTS / f"{name}.jsonl" for name in ("engine", "sequence_ops", "dense_ops"))
    times = fitted(latest(*files))

    def drafts() -> SimulatedDrafts:
        return SimulatedDrafts(options.kept, lambda count, width: times.graph_ms(count, count * width))

    for name, rounds in _traces(options).items():
        titles = [f"{what}_p{percent}" for what in MEASURED for percent in PERCENTS]
        print(f"\n{name:14}" + ("GPUs" if options.plan else "".join(f"{title:>11}" for title in titles)))
        for order, planner in orders(options.pass_tokens, options.chunk_tokens).items():
            if options.plan:
                needed = gpus_needed(rounds[0], planner, times.ms, targets(options.plan), drafts)
                print(f"{order:14}{needed or 'none'}", flush=True)
                continue
            found = figures(
                [by_class(replay(trace, planner, times.ms, drafts, gpus=options.gpus)) for trace in rounds]
            )
            print_table(order, found)
            if options.record:
                keep(f"kept{options.kept:g}_{name}", order, found)


if __name__ == "__main__":
    main()

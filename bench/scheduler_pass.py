"""Times what the scheduler adds to a pass: 32 requests run, 1,000 wait. Python on a CPU, no model.

    python -m bench.scheduler_pass [--record]

`scheduler_pass_ms`: all 32 slots are taken; each answer has a draft of seven tokens.
`scheduler_pass_full_ms`: more slots are free, but memory for none of those that wait, so each is looked at.
Medians, 10th and 90th percentile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from bench.record import record
from bench.simulated_gpu import percentile
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.request import Request
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass

RUNNING, WAITING, PASSES = 32, 1000, 500
PROMPT_TOKENS, ANSWER_TOKENS, DRAFT = 300, 60_000, (5,) * 7


def busy_scheduler(*, num_slots: int) -> Scheduler:
    """RUNNING answers are being written, memory is full, and WAITING wait."""
    page_tokens = 64
    pages = RUNNING * -(-(PROMPT_TOKENS + ANSWER_TOKENS) // page_tokens)
    made = Scheduler(
        num_slots=num_slots,
        num_pages=pages,
        page_tokens=page_tokens,
        pass_tokens=16_384,
        chunk_tokens=16_384,
        cached_slots=32,
        cache_s=600.0,
    )
    classes = list(PriorityClass)
    for number in range(RUNNING + WAITING):
        made.add(
            Request(
                id=str(number),
                prompt=(7,) * PROMPT_TOKENS,
                max_answer_tokens=ANSWER_TOKENS,
                stop_tokens=frozenset(),
                priority=classes[number % len(classes)],
                arrived_s=0.0,
                tenant=str(number % 50),
            )
        )
    run_pass(made)
    return made


def run_pass(scheduler: Scheduler) -> float:
    """Milliseconds of planning one pass and taking its result, of which every draft keeps three tokens."""
    started_s = time.perf_counter()
    plan = scheduler.schedule(0.0, drafts)
    planned_s = time.perf_counter()
    result = PassResult(
        drawn=tuple(
            Drawn(request=span.request, token=5) for span in plan.spans for _ in range(3 if span.draft else 1)
        )
    )
    drawn_s = time.perf_counter()
    scheduler.apply(result)
    return 1e3 * (planned_s - started_s + time.perf_counter() - drawn_s)


def drafts(rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
    """As long as there is room for."""
    return {request: DRAFT[:room] for request, room in rooms.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results")
    options = parser.parse_args()
    for case, num_slots in (("scheduler_pass_ms", RUNNING), ("scheduler_pass_full_ms", 2 * RUNNING)):
        scheduler = busy_scheduler(num_slots=num_slots)
        assert scheduler.num_running == RUNNING
        times_ms = [run_pass(scheduler) for _ in range(PASSES)]
        low, median, high = (percentile(times_ms, percent) for percent in (10, 50, 90))
        print(f"{case:24}{median:8.3f} ms  ({low:.3f} to {high:.3f})", flush=True)
        if options.record:
            record(case, median, "ms", None, (low, high), file="engine")


if __name__ == "__main__":
    main()

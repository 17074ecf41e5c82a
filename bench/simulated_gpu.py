"""Replays arrivals against planners of passes, in simulated time. Knows no model and not what a pass takes.

The planner is the real one; the runner is a script that writes each answer to its length. A pass ends after
the time that its plan takes; who arrives meanwhile waits for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.arrivals import Arrival
from bench.simulated_drafts import GUESS, SimulatedDrafts, no_guesses
from sparkle.engine.plan import Drawn, PassPlan, PassResult, Span
from sparkle.engine.request import Request
from sparkle.engine.scheduler import Drafts, Written

PassMs = Callable[[PassPlan], float]
"""Milliseconds that a pass takes."""
GO_ON, STOP = GUESS, 1
"""Tokens of every answer: the last one ends it."""


class Planner(Protocol):
    """`Scheduler`, or another order."""

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        ...

    def add(self, request: Request) -> None:
        """A new request waits."""
        ...

    def schedule(self, now_s: float, drafts: Drafts, /) -> PassPlan:
        """The next pass, planned at this moment."""
        ...

    def apply(self, result: PassResult) -> list[Written]:
        """Take the result of the pass planned last."""
        ...


@dataclass(slots=True)
class Served:
    """What became of a job, in seconds since the trace began."""

    arrival: Arrival
    first_token_s: float = math.nan
    latest_token_s: float = math.nan
    longest_gap_s: float = 0.0
    """Between two tokens of the answer."""

    written_tokens: int = 0

    def write(self, now_s: float) -> None:
        """One more token."""
        if self.written_tokens:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.latest_token_s)
        else:
            self.first_token_s = now_s
        self.latest_token_s = now_s
        self.written_tokens += 1

    @property
    def waited_s(self) -> float:
        """From its arrival to its first token."""
        return self.first_token_s - self.arrival.at_s

    @property
    def total_s(self) -> float:
        """From its arrival to its last token."""
        return self.latest_token_s - self.arrival.at_s


class SimulatedGpu:
    """One planner and its time."""

    def __init__(self, planner: Planner, pass_ms: PassMs, drafts: SimulatedDrafts) -> None:
        self._planner = planner
        self._pass_ms = pass_ms
        self._drafts = drafts
        self._now_s = 0.0
        self._jobs: dict[str, Served] = {}

    @property
    def owed_s(self) -> float:
        """Service that its jobs are thought to take, those begun counted whole."""
        return math.fsum(job.arrival.service_s for job in self._jobs.values())

    def add(self, name: str, job: Served) -> None:
        """A job arrives, the GPU having run until then."""
        arrival = job.arrival
        self._now_s = max(self._now_s, arrival.at_s)
        self._jobs[name] = job
        self._planner.add(
            Request(
                id=name,
                prompt=(GO_ON,) * arrival.prompt_tokens,
                max_answer_tokens=arrival.max_answer_tokens,
                stop_tokens=frozenset({STOP}),
                priority=arrival.priority,
                arrived_s=arrival.at_s,
            )
        )

    def run_until(self, until_s: float) -> None:
        """Every pass that begins before then."""
        while self._planner.has_work and self._now_s < until_s:
            self._pass()

    def _pass(self) -> None:
        plan = self._planner.schedule(self._now_s, self._drafts.choose)
        assert plan.spans, "there is work, but the plan is empty"
        self._now_s += self._pass_ms(plan) / 1e3
        drawn = tuple(one for span in plan.spans if span.draws for one in self._draw(span))
        for event in self._planner.apply(PassResult(drawn=drawn)):
            self._jobs[event.drawn.request].write(self._now_s)
            if event.finish is not None:
                del self._jobs[event.drawn.request]

    def _draw(self, span: Span) -> list[Drawn]:
        """A token, and one more for each right guess, up to the answer's end."""
        job = self._jobs[span.request]
        left = job.arrival.answer_tokens - job.written_tokens
        count = min(1 + self._drafts.right(len(span.draft)), left)
        tokens = [GO_ON] * (count - 1) + [STOP if count == left else GO_ON]
        return [Drawn(request=span.request, token=token) for token in tokens]


def replay(
    arrivals: Iterable[Arrival],
    planner: Callable[[], Planner],
    pass_ms: PassMs,
    drafts: Callable[[], SimulatedDrafts] = no_guesses,
    *,
    gpus: int = 1,
) -> list[Served]:
    """What became of each job. Arrivals are in order of time; each goes to the GPU that owes the least."""
    machines = [SimulatedGpu(planner(), pass_ms, drafts()) for _ in range(gpus)]
    jobs = [Served(arrival) for arrival in arrivals]
    for number, job in enumerate(jobs):
        for machine in machines:
            machine.run_until(job.arrival.at_s)
        min(machines, key=lambda machine: machine.owed_s).add(str(number), job)
    for machine in machines:
        machine.run_until(math.inf)
    return jobs


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values, at least one, that so many percent of them do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]

"""When jobs arrive and how long they are: given, by chance or in bursts. Knows no scheduler.

A given trace is a file of JSON lines: {"at_s": 0.5, "prompt_tokens": 300, "answer_tokens": 100,
"max_answer_tokens": 150}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

from sparkle.schemas.priority import PriorityClass, ServiceRates, classify, service_s

RATES = ServiceRates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job. ValueError where a number makes no sense."""

    at_s: float
    """Seconds since the trace began."""

    prompt_tokens: int
    answer_tokens: int
    """Tokens that the answer will have: nothing knows it beforehand."""

    max_answer_tokens: int
    """Tokens that the job allows."""

    def __post_init__(self) -> None:
        if self.at_s < 0:
            raise ValueError(f"at_s is {self.at_s} but must be at least 0")
        if self.prompt_tokens < 1:
            raise ValueError(f"prompt_tokens is {self.prompt_tokens} but must be at least 1")
        if not 1 <= self.answer_tokens <= self.max_answer_tokens:
            raise ValueError(
                f"answer_tokens is {self.answer_tokens} but must be 1 to max_answer_tokens, "
                f"{self.max_answer_tokens}"
            )

    @property
    def priority(self) -> PriorityClass:
        """The class that a producer gives it."""
        return classify(self.prompt_tokens, self.max_answer_tokens, RATES)

    @property
    def service_s(self) -> float:
        """What it is thought to take, as its class is."""
        return service_s(self.prompt_tokens, self.max_answer_tokens, RATES)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job: its lengths on average. Each job has from half to one and a half of them."""

    prompt_tokens: int
    answer_tokens: int

    def arrive(self, at_s: float, random: Random) -> Arrival:
        """One of them, its lengths by chance."""
        return Arrival(
            at_s=at_s,
            prompt_tokens=_around(self.prompt_tokens, random),
            answer_tokens=_around(self.answer_tokens, random),
            max_answer_tokens=self.answer_tokens + self.answer_tokens // 2,
        )


TRIAGE = Kind(300, 100)
"""A short question about an alert."""
REPORT = Kind(33_000, 1_000)
"""An analysis of a case in a SOAR system."""
DOCUMENT = Kind(100_000, 1_000)
BOOK = Kind(2_000, 8_000)
"""Little to read and much to write."""


def given(path: Path) -> list[Arrival]:
    """A trace from a file. Raises ValueError where a number makes no sense, TypeError for other fields."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return merged(Arrival(**json.loads(line)) for line in lines if line.strip())


def poisson(kind: Kind, *, per_s: float, until_s: float, seed: int) -> list[Arrival]:
    """Independent of one another, so many a second on average."""
    random = Random(seed)
    found: list[Arrival] = []
    at_s = random.expovariate(per_s)
    while at_s < until_s:
        found.append(kind.arrive(at_s, random))
        at_s += random.expovariate(per_s)
    return found


def bursts(kind: Kind, *, size: int, every_s: float, until_s: float, seed: int) -> list[Arrival]:
    """So many at once, again and again from the start on."""
    random = Random(seed)
    count = -int(-until_s // every_s)
    return [kind.arrive(number * every_s, random) for number in range(count) for _ in range(size)]


def merged(*traces: Iterable[Arrival]) -> list[Arrival]:
    """All of them in order of time; of those at the same moment in the order given."""
    return sorted((one for trace in traces for one in trace), key=lambda one: one.at_s)


def faster(trace: Iterable[Arrival], times: float) -> list[Arrival]:
    """The same jobs, so many times as often."""
    return [replace(one, at_s=one.at_s / times) for one in trace]


LOAD_S = 120.0
LOADS: Mapping[str, Callable[[int], list[Arrival]]] = MappingProxyType(
    {
        "mixed": lambda seed: merged(
            bursts(DOCUMENT, size=2, every_s=LOAD_S, until_s=LOAD_S, seed=seed),
            poisson(TRIAGE, per_s=16, until_s=30, seed=seed),
        ),
        "soar": lambda seed: merged(
            poisson(REPORT, per_s=0.2, until_s=LOAD_S, seed=seed),
            poisson(TRIAGE, per_s=4, until_s=LOAD_S, seed=seed + 1),
        ),
        "bursts": lambda seed: merged(
            bursts(REPORT, size=8, every_s=40, until_s=LOAD_S, seed=seed),
            poisson(TRIAGE, per_s=4, until_s=LOAD_S, seed=seed),
        ),
        "writing": lambda seed: merged(
            bursts(BOOK, size=80, every_s=LOAD_S, until_s=LOAD_S, seed=seed),
            poisson(TRIAGE, per_s=4, until_s=60, seed=seed),
        ),
    }
)
"""By a seed. mixed: 16 questions a second beside two documents; soar: reports and questions, both by chance;
bursts: eight reports at once beside questions; writing: more long answers than slots, beside questions."""


def _around(mean: int, random: Random) -> int:
    return random.randint(max(1, mean // 2), mean + mean // 2)

"""Width control beside every fixed width, in simulated passes: `python -m bench.draft_widths`.

Full batches of sequences whose guesses are right by chance; a pass takes what it takes on an H200, or in
float32 on a CPU, where it is also held up now and then and nothing was measured at the start. Each figure is
tokens a second as a multiple of those without drafts: width control's, and the best fixed width's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.width import WidthControl
from sparkle.engine.buckets import WIDTHS, Bucket, buckets_for, smallest
from sparkle.engine.pass_costs import PassCosts

DRAFT_TOKENS = WIDTHS[-1] - 1
ANSWER_TOKENS = 300
PASSES = 1500
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
DRAFT = ("model",) * DRAFT_TOKENS

Chance = Callable[[int, int], float]
"""(number of the answer, tokens of it written) -> of a guess, that it is right where those before it are."""
WORKLOADS: dict[str, Chance] = {
    "json": lambda _answer, _written: 0.9,
    "prose": lambda _answer, _written: 0.75,
    "poor": lambda _answer, _written: 0.05,
    "hostile": lambda _answer, _written: 0.0,
    "hostile, then json": lambda _answer, written: 0.9 if written > ANSWER_TOKENS / 2 else 0.0,
    "json, then hostile": lambda _answer, written: 0.0 if written > ANSWER_TOKENS / 2 else 0.9,
    "half of them hostile": lambda answer, _written: (0.9, 0.75, 0.0, 0.0)[answer % 4],
    "seven of eight hostile": lambda answer, _written: 0.9 if answer % 8 == 0 else 0.0,
}


@dataclass(frozen=True)
class Machine:
    """What passes really take, and what is known of it beforehand."""

    costs_ms: Mapping[Bucket, float]
    measured_ms: Mapping[Bucket, float]
    held_up: bool = False
    """Whether passes take up to half as long again by chance, and one of fifty three times as long."""

    @property
    def batches(self) -> list[int]:
        """Sequences that it runs at once."""
        most = max(bucket.sequences for bucket in self.costs_ms)
        return [batch for batch in BATCHES if batch <= most]

    def bucket(self, sequences: int, width: int) -> Bucket | None:
        """The shape that such a pass takes."""
        return smallest(list(self.costs_ms), sequences=sequences, width=width)

    def took_ms(self, sequences: int, width: int, random: Random) -> float:
        """One pass."""
        bucket = self.bucket(sequences, width)
        assert bucket is not None
        if not self.held_up:
            return self.costs_ms[bucket]
        return self.costs_ms[bucket] * random.uniform(1, 1.5) * (3 if random.random() < 0.02 else 1)


def h200(*, draft_ms: Callable[[int, int], float]) -> Machine:
    """At 33,000 tokens: 1x1 7.88, 1x16 8.74, 8x1 11.48, 8x8 13.63 ms were measured (2026-11-30).

    `draft_ms`: what so many sequences' drafts for a pass of such a width take on top.
    """
    costs = {
        bucket: 7.88
        + 0.514 * (bucket.sequences - 1)
        + 0.045 * (bucket.rows - bucket.sequences)
        + (draft_ms(bucket.sequences, bucket.width) if bucket.width > 1 else 0.0)
        for bucket in buckets_for(32, WIDTHS)
    }
    return Machine(costs, costs)


def dflash2_ms(sequences: int, width: int) -> float:
    """Guess, draw and follow: 0.93 ms at 1x16 and 1.19 at 8x8 were measured."""
    return 0.8 + 0.0085 * width + 0.04 * (sequences - 1)


def mtp_ms(sequences: int, width: int) -> float:
    """One guess after another: 0.77 ms at 1x4 and 1.21 at 8x4 were measured."""
    return (0.257 + 0.021 * (sequences - 1)) * (width - 1)


def cpu() -> Machine:
    """sparkle-tiny with one thread, docs/decisions/0004-drafting.md."""
    rows = {1: (20, 27, 31, 37), 2: (23, 38, 37, 49), 4: (35, 48, 56, 73), 8: (46, 75, 84, 126)}
    costs = {
        Bucket(sequences, width): float(ms)
        for sequences, all_ms in rows.items()
        for width, ms in zip(WIDTHS, all_ms, strict=True)
    }
    return Machine(costs, {}, held_up=True)


MACHINES = {
    "H200, copies": h200(draft_ms=lambda _sequences, _width: 0.0),
    "H200, DFlash2": h200(draft_ms=dflash2_ms),
    "H200, MTP": h200(draft_ms=mtp_ms),
    "CPU": cpu(),
}


class Policy(Protocol):
    """What chooses widths."""

    def choose(self, answers: Sequence[int]) -> int:
        """Of a pass of these answers."""
        ...

    def passed(self, width: int, right: Mapping[int, int], took_ms: float) -> None:
        """What came of it: of each answer the right guesses."""
        ...

    def ended(self, answer: int) -> None:
        """One is complete."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    width: int

    def choose(self, answers: Sequence[int]) -> int:
        return self.width

    def passed(self, width: int, right: Mapping[int, int], took_ms: float) -> None:
        pass

    def ended(self, answer: int) -> None:
        pass


class Controlled:
    """As the engine does it, where every sequence always has a whole draft."""

    def __init__(self, machine: Machine) -> None:
        self._acceptance = Acceptance(DRAFT_TOKENS)
        costs = PassCosts(list(machine.costs_ms), machine.measured_ms)
        self._widths = WidthControl(costs, self._acceptance)

    def choose(self, answers: Sequence[int]) -> int:
        return self._widths.choose(len(answers), {str(answer): DRAFT for answer in answers}, guesses=False)

    def passed(self, width: int, right: Mapping[int, int], took_ms: float) -> None:
        drafted = width - 1
        if drafted:
            for answer, kept in right.items():
                tried = min(kept + 1, drafted)
                self._acceptance.checked(str(answer), DRAFT[:drafted], kept, tried=tried)
        kept_tokens = len(right) + sum(right.values())
        self._widths.passed(len(right), width, guesses=False, kept_tokens=kept_tokens, took_ms=took_ms)

    def ended(self, answer: int) -> None:
        self._acceptance.end(str(answer))


def tokens_per_plain(
    machine: Machine, chance: Chance, batch: int, policy: Policy, *, passes: int = PASSES
) -> float:
    """Tokens a second with this policy, over those that passes without drafts would write."""
    random, clock = Random(1), Random(2)
    written = dict.fromkeys(range(batch), 0)
    made, tokens, took_ms, plain_ms = batch, 0, 0.0, 0.0
    for _ in range(passes):
        width = policy.choose(list(written))
        # both are held up alike
        seed = clock.random()
        pass_ms = machine.took_ms(batch, width, Random(seed))
        plain_ms += machine.took_ms(batch, 1, Random(seed))
        right = {
            answer: _right(chance(answer, count), width - 1, random) for answer, count in written.items()
        }
        policy.passed(width, right, pass_ms)
        took_ms += pass_ms
        for answer, kept in right.items():
            tokens += 1 + kept
            written[answer] += 1 + kept
            if written[answer] >= ANSWER_TOKENS:
                policy.ended(answer)
                del written[answer]
                written[made] = 0
                made += 1
    return tokens / took_ms / (batch * passes / plain_ms)


def best_fixed(machine: Machine, chance: Chance, batch: int, *, passes: int = PASSES) -> float:
    """The best that one width for all passes reaches, none among them."""
    return max(
        tokens_per_plain(machine, chance, batch, Fixed(width), passes=passes)
        for width in WIDTHS
        if machine.bucket(batch, width) is not None
    )


def main() -> None:
    for name, machine in MACHINES.items():
        print(f"\n{name}: width control / best fixed width, by sequences")
        print(" " * 24 + "".join(f"{batch:>14}" for batch in machine.batches))
        for workload, chance in WORKLOADS.items():
            found = (
                (
                    tokens_per_plain(machine, chance, batch, Controlled(machine)),
                    best_fixed(machine, chance, batch),
                )
                for batch in machine.batches
            )
            print(
                f"{workload:24}" + "".join(f"  {ours:5.3f}/{best:5.3f}" for ours, best in found), flush=True
            )


def _right(chance: float, drafted: int, random: Random) -> int:
    right = 0
    while right < drafted and random.random() < chance:
        right += 1
    return right


if __name__ == "__main__":
    main()

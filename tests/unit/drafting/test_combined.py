"""The first proposer with a proposal makes the draft; all of them see every token."""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.drafting.combined import Combined


class Recorder:
    """Proposes what it was told to, and remembers what it saw."""

    def __init__(self, *proposals: tuple[int, ...]) -> None:
        self._proposals = list(proposals)
        self.seen: list[tuple[str, str, tuple[int, ...]]] = []

    def start(self, request: str, prompt: Sequence[int]) -> None:
        self.seen.append(("start", request, tuple(prompt)))

    def add(self, request: str, tokens: Sequence[int]) -> None:
        self.seen.append(("add", request, tuple(tokens)))

    def propose(self, request: str, count: int) -> tuple[int, ...]:
        self.seen.append(("propose", request, (count,)))
        return self._proposals.pop(0)

    def end(self, request: str) -> None:
        self.seen.append(("end", request, ()))


def test_the_first_with_a_proposal_wins_and_is_named() -> None:
    first, second = Recorder((1, 2), (), ()), Recorder((3,), ())
    both = Combined({"first": first, "second": second})
    both.start("a", [9])
    assert (both.propose("a", 5), both.source("a")) == ((1, 2), "first")
    both.add("a", [1, 2, 7])
    assert (both.propose("a", 4), both.source("a")) == ((3,), "second")
    assert both.propose("a", 3) == ()
    both.end("a")
    around = [("start", "a", (9,)), ("add", "a", (1, 2, 7)), ("end", "a", ())]
    assert first.seen == [around[0], ("propose", "a", (5,)), around[1], *_asked(4, 3), around[2]]
    # the second was not asked where the first had spoken
    assert second.seen == [around[0], around[1], *_asked(4, 3), around[2]]


def _asked(*counts: int) -> list[tuple[str, str, tuple[int, ...]]]:
    return [("propose", "a", (count,)) for count in counts]


def test_without_parts_there_is_no_proposal() -> None:
    none = Combined({})
    none.start("a", [1])
    none.add("a", [2])
    assert none.propose("a", 15) == ()
    none.end("a")

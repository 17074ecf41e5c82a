"""Proposers one behind the other: each goes on where the one before it ends, and all see every token."""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.drafting.combined import Combined
from sparkle.drafting.draft import Draft
from sparkle.drafting.forced import Forced
from sparkle.drafting.lookup import PromptLookup


class Recorder:
    """Proposes what it was told to, and remembers what it saw."""

    def __init__(self, *proposals: tuple[int, ...]) -> None:
        self._proposals = list(proposals)
        self.seen: list[tuple[object, ...]] = []

    def start(self, request: str, prompt: Sequence[int]) -> None:
        self.seen.append(("start", request, tuple(prompt)))

    def add(self, request: str, tokens: Sequence[int]) -> None:
        self.seen.append(("add", request, tuple(tokens)))

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        self.seen.append(("propose", request, count, tuple(behind)))
        return self._proposals.pop(0)

    def end(self, request: str) -> None:
        self.seen.append(("end", request))


def test_a_draft_goes_on_with_the_next_proposer_and_every_token_is_named() -> None:
    first, second, third = Recorder((1, 2), (), (5, 6)), Recorder((3,), (), ()), Recorder((), (4,))
    all_three = Combined({"first": first, "second": second, "third": third})
    all_three.start("a", [9])
    assert all_three.propose("a", 5) == Draft((1, 2, 3), ("first", "first", "second"))
    all_three.add("a", [1, 2, 7])
    assert all_three.propose("a", 4) == Draft((4,), ("third",))
    assert all_three.propose("a", 2) == Draft((5, 6), ("first", "first"))
    all_three.end("a")
    around = [("start", "a", (9,)), ("add", "a", (1, 2, 7)), ("end", "a")]
    assert [one for one in first.seen if one[0] != "propose"] == around
    # where the draft is full nobody is asked
    asked = [("propose", "a", 5, ()), ("propose", "a", 4, ()), ("propose", "a", 2, ())]
    assert [one for one in first.seen if one[0] == "propose"] == asked
    assert second.seen == [around[0], ("propose", "a", 3, (1, 2)), around[1], asked[1], around[2]]
    assert third.seen == [around[0], ("propose", "a", 2, (1, 2, 3)), around[1], asked[1], around[2]]


def test_without_parts_there_is_no_proposal() -> None:
    none = Combined({})
    none.start("a", [1])
    none.add("a", [2])
    assert none.propose("a", 15) == Draft()
    assert not none.propose("a", 15)
    none.end("a")


def test_a_copy_goes_on_behind_a_forced_run() -> None:
    forced = {"a": [4, 5, 6], "b": list[int]()}
    both = Combined({"forced": Forced(lambda name, count: forced[name][:count]), "lookup": PromptLookup()})
    for request in forced:
        both.start(request, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        both.add(request, [90, 91])
    # the run leads to where the copy's tokens stood: the request's own last tokens stood nowhere
    assert both.propose("a", 5) == Draft((4, 5, 6, 7, 8), (*["forced"] * 3, *["lookup"] * 2))
    assert both.propose("a", 2) == Draft((4, 5), ("forced", "forced"))
    assert both.propose("b", 5) == Draft()
    both.add("b", [2, 3, 4])
    assert both.propose("b", 2) == Draft((5, 6), ("lookup", "lookup"))


def test_what_is_forced_behind_guesses_is_not_known() -> None:
    assert Forced(lambda _, count: [1] * count).propose("a", 3, behind=[2]) == ()

"""Which drafts a pass gets, who is said to have made them, and what is learned from what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.combined import Combined
from sparkle.drafting.forced import Forced
from sparkle.engine.draft_choice import COPY_ANYWAY, REST_PASSES, DraftChoice
from sparkle.engine.plan import TO_GUESS, Drawn, PassPlan, Span
from sparkle.engine.scheduler import Written


@dataclass
class Told:
    """Widths as a test wants them; remembers what it is told."""

    width: int = 16
    guesses_are_dear: bool = False
    guesses: list[bool] = field(default_factory=list[bool])
    asked: list[tuple[int, dict[str, list[str]]]] = field(
        default_factory=list[tuple[int, dict[str, list[str]]]]
    )
    passes: list[tuple[int, int, int, float | None]] = field(
        default_factory=list[tuple[int, int, int, float | None]]
    )

    def choose(self, sequences: int, offers: Mapping[str, Sequence[str]], *, guesses: bool) -> int:
        self.asked.append((sequences, {name: list(sources) for name, sources in offers.items()}))
        self.guesses.append(guesses)
        return 1 if guesses and self.guesses_are_dear else self.width

    def passed(
        self, sequences: int, width: int, *, guesses: bool, kept_tokens: int, took_ms: float | None
    ) -> None:
        self.guesses.append(guesses)
        self.passes.append((sequences, width, kept_tokens, took_ms))


class Choice:
    """One with a proposer that has `copies`, by request."""

    def __init__(self, draft_model: str | None = None, draft_tokens: int = 15, **copies: list[int]) -> None:
        self.widths = Told()
        self.acceptance = Acceptance(draft_tokens)
        self.made = DraftChoice(
            Combined({"copy": Forced(lambda name, count: copies[name][:count])}),
            self.widths,
            self.acceptance,
            draft_tokens=draft_tokens,
            draft_model=draft_model,
        )
        for name in copies:
            self.made.start(name, [1])

    def chances(self, name: str, source: str = "copy") -> list[float]:
        return self.acceptance.chances(name, [source] * 3)


def plan(**drafts: tuple[int, ...]) -> PassPlan:
    return PassPlan(
        spans=tuple(
            Span(
                request=name,
                slot=slot,
                start=5,
                tokens=(9, *draft),
                pages=(0,),
                draws=True,
                fresh=False,
                draft=draft,
            )
            for slot, (name, draft) in enumerate(drafts.items())
        )
    )


def written(name: str, *guessed: bool) -> list[Written]:
    return [
        Written(drawn=Drawn(request=name, token=7), finish=None, guessed=is_guessed) for is_guessed in guessed
    ]


def test_drafts_are_cut_to_the_width_of_the_pass() -> None:
    choice = Choice(a=[1, 2, 3, 4, 5], b=[6], c=[], draft_tokens=4)
    choice.widths.width = 4
    rooms = {"a": 15, "b": 15, "c": 15, "full": 0}
    assert choice.made.choose(rooms) == {"a": (1, 2, 3), "b": (6,)}
    # the setting, not the copy, is the limit of what is offered; those without drafts count as sequences
    assert choice.widths.asked == [(4, {"a": ["copy"] * 4, "b": ["copy"]})]
    assert choice.made.choose({"a": 2}) == {"a": (1, 2)}


def test_where_nothing_is_offered_no_width_is_chosen() -> None:
    choice = Choice(a=[])
    assert choice.made.choose({"a": 15}) == {}
    assert choice.made.choose({}) == {}
    assert choice.widths.asked == []


def test_a_plain_width_drafts_nothing() -> None:
    choice = Choice(a=[1, 2])
    choice.widths.width = 1
    assert not any(choice.made.choose({"a": 15}).values())
    assert choice.made.sources(plan(a=())) == {}


def test_sources_are_of_what_the_scheduler_left_of_a_draft() -> None:
    choice = Choice(a=[1, 2, 3], b=[4])
    choice.made.choose({"a": 15, "b": 15})
    assert choice.made.sources(plan(a=(1, 2), b=())) == {"a": ("copy", "copy")}


@pytest.mark.parametrize(
    ("guessed", "right", "tried"),
    [
        ((True, True, True, False), 3, 3),  # all, and one on top
        ((True, False), 1, 2),
        ((False,), 0, 1),
        ((True, True), 2, 2),  # the answer ended inside the draft
    ],
)
def test_what_was_compared_is_learned(guessed: tuple[bool, ...], right: int, tried: int) -> None:
    choice, expected = Choice(a=[1, 2, 3]), Acceptance(15)
    choice.made.choose({"a": 15})
    choice.made.passed(plan(a=(1, 2, 3)), written("a", *guessed), 4.0)
    expected.checked("a", ["copy"] * 3, right, tried=tried)
    assert choice.chances("a") == expected.chances("a", ["copy"] * 3)
    assert choice.widths.passes == [(1, 4, len(guessed), 4.0)]


def test_a_request_that_broke_or_left_teaches_nothing() -> None:
    choice = Choice(a=[1, 2, 3], b=[4])
    before = choice.chances("a")
    choice.made.choose({"a": 15, "b": 15})
    choice.made.passed(plan(a=(1, 2, 3), b=(4,)), written("b", True, False), 4.0)
    # but for what b's draft says of the proposer
    choice.made.end("a")
    assert choice.chances("a") == choice.chances("new") != before
    assert choice.widths.passes == [(2, 4, 2, 4.0)]


def test_passes_beside_prompts_are_not_timed_and_prompts_alone_are_no_pass_of_drafts() -> None:
    choice = Choice(a=[1])
    choice.made.choose({"a": 15})
    choice.made.passed(plan(a=(1,), prompt=()), written("a", True, False) + written("prompt", False), 4.0)
    assert choice.widths.passes == [(1, 2, 2, None)]
    choice.made.choose({})
    choice.made.passed(plan(prompt=()), written("prompt", False), 4.0)
    assert len(choice.widths.passes) == 1


def test_a_draft_model_guesses_where_there_is_no_copy() -> None:
    choice = Choice("mtp", a=[1, 2, 3], b=[], draft_tokens=3)
    assert choice.made.choose({"a": 15, "b": 2}) == {"a": (1, 2, 3), "b": (TO_GUESS,) * 2}
    assert choice.made.sources(plan(a=(1, 2, 3), b=(-1, -1))) == {"a": ("copy",) * 3, "b": ("mtp",) * 2}


def test_it_is_told_whether_the_draft_model_guesses() -> None:
    choice = Choice("mtp", a=[1, 2, 3], b=[], draft_tokens=3)
    for rooms, guesses in (({"a": 15, "b": 15}, True), ({"a": 15}, False)):
        drafts = choice.made.choose(rooms)
        choice.made.passed(plan(**drafts), [], 4.0)
        assert choice.widths.guesses == [guesses] * 2
        choice.widths.guesses.clear()


def test_where_guesses_do_not_pay_copies_alone_may() -> None:
    choice = Choice("mtp", a=[1, 2, 3], b=[], draft_tokens=3)
    choice.widths.guesses_are_dear = True
    assert choice.made.choose({"a": 15, "b": 15}) == {"a": (1, 2, 3)}
    assert choice.widths.asked == [(2, {"a": ["copy"] * 3, "b": ["mtp"] * 3}), (2, {"a": ["copy"] * 3})]
    assert choice.made.choose({"b": 15}) == {}


def test_a_copy_that_keeps_less_than_guesses_gives_way_to_them_and_is_tried_again() -> None:
    choice = Choice("mtp", a=[1, 2, 3], draft_tokens=3)
    copies = 0
    for _ in range(10 * COPY_ANYWAY):
        draft = choice.made.choose({"a": 15})["a"]
        is_copy = draft == (1, 2, 3)
        copies += is_copy
        kept = (False,) if is_copy else (True, True, False)
        choice.made.passed(plan(a=draft), written("a", *kept), 4.0)
    assert 10 <= copies <= 20
    # now copies are right
    for _ in range(10 * COPY_ANYWAY):
        draft = choice.made.choose({"a": 15})["a"]
        right = 3 if draft == (1, 2, 3) else 2
        choice.made.passed(plan(a=draft), written("a", *[True] * right, False), 4.0)
    assert choice.made.choose({"a": 15})["a"] == (1, 2, 3)


def test_guesses_that_do_not_pay_are_asked_for_again_a_few_passes_later() -> None:
    choice = Choice("mtp", a=[], b=[], draft_tokens=3)
    choice.widths.guesses_are_dear = True
    asked = [len(choice.widths.asked) for _ in range(2 * REST_PASSES) if not choice.made.choose({"a": 15})]
    # one question, and then none in the passes that follow
    assert asked == [1] * REST_PASSES + [2] * REST_PASSES
    # other requests are another question, and so are copies
    assert not choice.made.choose({"a": 15, "b": 15})
    assert len(choice.widths.asked) == 3
    assert not choice.made.choose({"a": 15, "b": 15})
    assert len(choice.widths.asked) == 3


def test_a_copy_needs_no_leave_of_guesses_that_rest() -> None:
    copies: list[int] = []
    choice = Choice("mtp", a=copies, draft_tokens=3)
    choice.widths.guesses_are_dear = True
    assert not choice.made.choose({"a": 15})
    copies += [1, 2, 3]
    assert choice.made.choose({"a": 15}) == {"a": (1, 2, 3)}

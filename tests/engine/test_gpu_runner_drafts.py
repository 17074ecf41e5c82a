"""Drafts through the runner of the FP8 decoder: what is taken back leaves no trace in windows or pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.drafting.proposer import Proposer
from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, Span
from sparkle.engine.settings import Device, EngineSettings, Sizes
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, engine_around
from tests.engine.history_model import answer_to
from tests.engine.proposers import Knowing, adversary, liar, lookup, oracle
from tests.engine.test_gpu_runner import VOCAB, Rig, config, expected, follows, jobs, sizes, span

Make = Callable[[Mapping[str, Sequence[int]], int], Proposer]


def drafting_sizes(width: int, *, slots: int, pass_tokens: int, page_tokens: int = 8) -> Sizes:
    return EngineSettings(
        slots=slots, pass_tokens=pass_tokens, page_tokens=page_tokens, kv_tokens=1600, draft_tokens=width
    ).sizes(Device.CPU)


@pytest.mark.parametrize("make", [adversary, liar, oracle, lookup])
@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (drafting_sizes(3, slots=4, pass_tokens=40), (1, 4)),
        (drafting_sizes(15, slots=3, pass_tokens=17, page_tokens=3), (1, 4, 8, 16)),
        (drafting_sizes(1, slots=8, pass_tokens=200, page_tokens=1), (1, 16)),
        # more rows than one graph holds: some drafts take a second one
        (drafting_sizes(15, slots=20, pass_tokens=400), (1, 4, 8, 16)),
        (drafting_sizes(7, slots=20, pass_tokens=400), (1, 8)),
    ],
    ids=["usual", "odd", "one guess", "many", "two graphs"],
)
def test_every_answer_is_its_own(tokenizer: Tokenizer, of: Sizes, widths: Sequence[int], make: Make) -> None:
    """Prompts of up to 60 tokens are read beside the drafts, and slots are taken again and again."""
    asked = jobs(24)
    rig = Rig(of, widths, (24, 64) if of.page_tokens == 8 else ())
    proposer = make({job.id: expected(job) for job in asked}, VOCAB)
    built = engine_around(rig.runner, config(), tokenizer, of, proposer)
    for job, answer in zip(asked, built.run(*asked), strict=True):
        assert answer.tokens == expected(job)
    assert max(width for _, width, _ in rig.model.verified) > 1 or make is lookup


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(10, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=8),
    width=st.integers(1, 15),
    slots=st.integers(1, 5),
    extra=st.integers(1, 60),
    page_tokens=st.integers(1, 9),
    right=st.floats(0.0, 1.0),
    cancelled=st.integers(0, 12),
)
def test_whatever_is_drafted_read_and_cancelled_beside_it(
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    width: int,
    slots: int,
    extra: int,
    page_tokens: int,
    right: float,
    cancelled: int,
) -> None:
    of = drafting_sizes(width, slots=slots, pass_tokens=slots + extra, page_tokens=page_tokens)
    asked = [
        Job(prompt_tokens=prompt, max_tokens=1 + len(prompt) % 30, sampling=GREEDY) for prompt in prompts
    ]
    answers = {job.id: answer_to(job.prompt_tokens or [], job.max_tokens, VOCAB) for job in asked}
    proposer = Knowing(answers, lambda random: random.random() < right, vocab_size=VOCAB, ragged=True)
    rig = Rig(of, (1, 4, 8, 16))
    built = engine_around(rig.runner, config(), tokenizer, of, proposer)
    built.run_but_cancel(asked, after_passes=cancelled)
    gone = built.answers.get(asked[0].id)
    for job in asked:
        answer = built.answers.get(job.id)
        if answer is None or answer.end is None:
            assert answer is gone
            continue
        # the end token of the model may come earlier
        assert answer.tokens == answers[job.id][: len(answer.tokens)]
        assert len(answer.tokens) == job.max_tokens or answer.tokens[-1] in config().end_tokens


def drafted(request: str, slot: int, start: int, last: int, *draft: int) -> Span:
    whole = span(request, slot, start, (last, *draft))
    return Span(
        request=request,
        slot=slot,
        start=start,
        tokens=whole.tokens,
        pages=whole.pages,
        draws=True,
        fresh=start == 0,
        draft=draft,
    )


def drawn(rig: Rig, *spans: Span) -> list[tuple[str, int]]:
    states = {one.request: DrawState(one.request, GREEDY, 0, [0], VOCAB) for one in spans}
    return [(one.request, one.token) for one in rig.runner.run(PassPlan(spans=spans), states).drawn]


def test_drafting_plain_and_reading_requests_in_one_pass_draw_in_the_plans_order() -> None:
    rig = Rig(sizes(slots=3, pass_tokens=200, kv_tokens=192), (1, 4))
    drawn(rig, span("a", 0, 0, [1, 2, 3]), span("b", 1, 0, [7]))
    first, second = answer_to([1, 2, 3, 4], 2, VOCAB)
    wrong = (second + 1) % VOCAB
    long = list(range(20, 50))
    assert drawn(
        rig, span("c", 2, 0, long), drafted("a", 0, 3, 4, first, wrong, 9), span("b", 1, 1, [8])
    ) == [
        ("c", follows(*long)),
        ("a", first),
        ("a", second),
        ("b", follows(7, 8)),
    ]
    # a pass with no draft behind it: two rows of four have stayed
    assert drawn(rig, span("a", 0, 5, [second])) == [("a", follows(1, 2, 3, 4, first, second))]


def test_drafts_that_no_one_graph_holds_take_two() -> None:
    slots = 10
    rig = Rig(sizes(slots=slots, pass_tokens=200, page_tokens=4, kv_tokens=slots * 32), (1, 16))
    drawn(rig, *(span(f"r{slot}", slot, 0, [slot, slot]) for slot in range(slots)))
    rig.model.verified.clear()
    answers = [answer_to([slot, slot, 5], 14, VOCAB) for slot in range(slots)]
    spans = [drafted(f"r{slot}", slot, 2, 5, *answers[slot][:13]) for slot in range(slots)]
    assert drawn(rig, *spans) == [(f"r{slot}", token) for slot in range(slots) for token in answers[slot]]
    assert [(places * width <= 128, used) for places, width, used in rig.model.verified] == [
        (True, 8),
        (True, 2),
    ]


def test_a_draft_wider_than_any_graph_is_a_fault() -> None:
    rig = Rig(sizes(slots=2, pass_tokens=200, kv_tokens=128), (1, 4))
    drawn(rig, span("a", 0, 0, [1]))
    with pytest.raises(AssertionError, match="wider than any graph"):
        drawn(rig, drafted("a", 0, 1, 2, 3, 4, 5, 6))

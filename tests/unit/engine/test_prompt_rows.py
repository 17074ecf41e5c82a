"""How many rows read prompts: all, a chunk or a part of it, by who waits; and nothing waits for ever."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkle.engine.checkpoint_places import CheckpointPlaces
from sparkle.engine.plan import MAX_DRAFT_TOKENS, Drawn, PassPlan, PassResult
from sparkle.engine.prompt_rows import PromptRows
from sparkle.engine.request import Request, RequestState
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass, target_s
from tests.unit.engine.made_requests import request

P0, P1, P2, P3, P4 = PriorityClass
ROWS = 8448
CHUNK = 4096


def answers(*classes: PriorityClass) -> list[Request]:
    return [request(str(number), 1, priority) for number, priority in enumerate(classes)]


def share(
    reading: list[Request],
    decoding: list[Request] | None = None,
    *,
    rows: int = ROWS,
    now_s: float = 0.0,
    of: PromptRows | None = None,
) -> dict[str, int]:
    """By one that has saved nothing, or by `of`."""
    shared = (of or PromptRows(CHUNK)).share(reading, decoding or [], rows, now_s)
    return {one.id: own for one, own in shared}


def draw(plan: PassPlan) -> PassResult:
    return PassResult(drawn=tuple(Drawn(request=span.request, token=5) for span in plan.spans if span.draws))


def test_alone_a_prompt_gets_all_rows() -> None:
    assert share([request("a", 33_000, P2)]) == {"a": 8448}
    assert share([request("a", 33_000, P2), request("b", 40_000, P2)]) == {"a": 8448}


def test_beside_answers_of_its_own_class_or_longer_it_gets_a_chunk() -> None:
    assert share([request("a", 33_000, P2)], answers(*[P2] * 30, P3, P4)) == {"a": 4096}
    assert share([request("a", 33_000, P2)], answers(P3)) == {"a": 4096}
    assert share([request("a", 5000, P0)], answers(P0)) == {"a": 4096}
    assert share([request("a", 33_000, P2)], answers(P2, P3), rows=900) == {"a": 900}


def test_it_gets_two_where_for_a_while_no_other_class_was_here() -> None:
    prompt, beside = [request("a", 33_000, P2)], answers(*[P2] * 30)
    assert share(prompt, beside) == {"a": 8192}
    assert share(prompt, beside, rows=900) == {"a": 900}
    deep = request("deep", 60_000, P2)
    deep.computed = 32_767
    assert share([deep], beside) == {"deep": 8192}
    deep.computed = 32_768
    assert share([deep], beside) == {"deep": 4096}
    of = PromptRows(CHUNK)
    share([], answers(P0), of=of, now_s=1.0)
    assert share(prompt, beside, of=of, now_s=8.9) == {"a": 4096}
    assert share(prompt, beside, of=of, now_s=9.0) == {"a": 8192}
    # a question's prompt alone, too
    share([request("question", 300, P0), *prompt], beside, of=of, now_s=9.1)
    assert share(prompt, beside, of=of, now_s=17.0) == {"a": 4096}


def test_what_a_long_prompt_leaves_goes_to_those_that_end_in_it() -> None:
    first, second = request("first", 33_000, P2, arrival=1), request("second", 34_000, P2, arrival=2)
    first.places = CheckpointPlaces(33_000, cached=0, shared=0, block_tokens=64)
    first.computed = 32_000
    assert share([first, second]) == {"first": 512}
    third = request("third", 7000, P2, arrival=3)
    assert share([first, second, third]) == {"first": 512, "third": 7000}
    assert share([first, second, third], rows=7511) == {"first": 512}


@pytest.mark.parametrize(("count", "passes"), [(1, 4), (8, 4), (9, 8), (16, 8)])
def test_beside_shorter_answers_it_gets_half_a_chunk_seldom_and_more_seldom_the_more_they_are(
    count: int, passes: int
) -> None:
    of, beside = PromptRows(CHUNK), answers(*[P0] * count, P2, P3)
    for _ in range(3):
        found = [share([request("a", 33_000, P2)], beside, of=of) for _ in range(passes)]
        assert found == [*[{}] * (passes - 1), {"a": 2048}]


def test_what_was_saved_up_is_forgotten_where_it_reads_freely() -> None:
    of, beside = PromptRows(CHUNK), answers(P0)
    prompt = [request("a", 33_000, P2)]
    assert [share(prompt, beside, of=of) for _ in range(3)] == [{}] * 3
    assert share(prompt, of=of) == {"a": 8448}
    assert [share(prompt, beside, of=of) for _ in range(4)] == [*[{}] * 3, {"a": 2048}]


def test_beside_more_than_sixteen_shorter_ones_only_an_overdue_one_gets_any() -> None:
    of, beside = PromptRows(CHUNK), answers(*[P0] * 17)
    long, longer = request("long", 33_000, P2, arrival=1), request("longer", 70_000, P2, arrival=2)
    assert all(share([long, longer], beside, of=of) == {} for _ in range(100))
    longer.arrived_s = -16.0
    found = [share([long, longer], beside, of=of) for _ in range(16)]
    assert found == [*[{}] * 15, {"longer": 2048}]


def test_a_question_is_read_at_once_whatever_its_class_and_a_document_beside_it_saves_up() -> None:
    of = PromptRows(CHUNK)
    question, document = request("question", 300, P4), request("document", 33_000, P2)
    assert share([document, question], of=of) == {"question": 300}
    assert share([document, question], answers(P0, P0), of=of) == {"question": 300}
    # beside nine it is a sixteenth
    assert share([document, question], answers(*[P0] * 8), of=of) == {"question": 300}
    assert share([document, question], answers(P0), of=of) == {"question": 300}
    assert share([document, question], answers(P0), of=of) == {"question": 300, "document": 2048}


def test_questions_together_get_a_chunk_beside_answers() -> None:
    questions = [request(str(number), 500, P0, arrival=number) for number in range(10)]
    assert share(questions, answers(P0)) == {**{str(number): 500 for number in range(8)}, "8": 96}
    # the first one waits for none, and then it is waited with
    assert share(questions) == share(questions, answers(P0))


def test_a_prompts_last_rows_are_read_and_no_other_document_in_their_pass() -> None:
    first, second = request("first", 33_000, P2, arrival=1), request("second", 33_000, P2, arrival=2)
    first.computed = 30_000
    assert share([second, first]) == {"first": 3000}


def test_an_urgent_prompt_keeps_half_a_chunk_and_others_together_get_a_quarter() -> None:
    long, short = (
        request("long", 60_000, P2, arrival=1),
        request("short", 30_000, P2, arrival=2, arrived_s=32.0),
    )
    assert share([long, short], now_s=31.9) == {"short": 8448}
    assert share([long, short], now_s=32.0) == {"short": 1024, "long": 7424}
    assert share([long, short], answers(P2, P3), now_s=32.0) == {"short": 1024, "long": 3072}
    assert share([long, short], answers(P2), now_s=32.0) == {"short": 1024, "long": 7168}
    assert share([long, short], answers(*[P0] * 20), now_s=31.9) == {}
    assert share([long, short], answers(*[P0] * 20), now_s=32.0) == {"long": 2048}
    questions = [request(str(number), 500, P0, arrival=number, arrived_s=31.5) for number in range(3, 9)]
    beside = share([long, *questions], answers(*[P0] * 20), now_s=32.0)
    assert beside == {"3": 500, "4": 500, "5": 24, "long": 2048}
    assert share([long], now_s=32.0) == {"long": 8448}


def test_of_few_rows_at_least_half_are_kept_and_none_is_lost() -> None:
    long, short = request("long", 60_000, P2, arrival=1), request("short", 300, P0, arrival=2)
    assert share([long, short], rows=21, now_s=32.0) == {"short": 10, "long": 11}
    assert share([long, short], rows=1, now_s=32.0) == {"long": 1}


prompts = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 89), st.sampled_from(PriorityClass), st.floats(0.0, 300.0)),
    max_size=6,
)


@given(
    prompts,
    st.lists(st.sampled_from(PriorityClass)),
    st.integers(0, 120),
    st.integers(1, 99),
    st.floats(0.0, 600.0),
)
def test_what_is_shared_out_is_there_and_in_the_end_somebody_gets_it(
    given_prompts: list[tuple[int, int, PriorityClass, float]],
    classes: list[PriorityClass],
    rows: int,
    chunk_tokens: int,
    now_s: float,
) -> None:
    reading: list[Request] = []
    for arrival, (tokens, computed, priority, arrived_s) in enumerate(given_prompts):
        reading.append(request(str(arrival), tokens, priority, arrival=arrival, arrived_s=arrived_s))
        reading[-1].computed = min(computed, tokens - 1)
    prompt_rows, decoding = PromptRows(chunk_tokens), answers(*classes)
    total = 0
    # what is saved up is half a chunk, of sixteenths at least
    for _ in range(1 + chunk_tokens):
        shared = prompt_rows.share(reading, decoding, rows, now_s)
        assert len({one.id for one, _ in shared}) == len(shared)
        assert all(0 < own <= one.unread_tokens for one, own in shared)
        total += (used := sum(own for _, own in shared))
        assert used <= rows
        assert used or classes or not (rows and reading), "a pass without rows"
        if classes:
            # nobody's next token waits for more than this
            here = {one.priority for one in (*reading, *decoding)}
            assert used <= max(2, chunk_tokens * (2 if len(here) == 1 and here != {P0} else 1))
    longest = max((one.priority for one in reading), default=P0)
    shorter = sum(of < longest for of in classes)
    if rows and reading and shorter <= 16:
        assert total
    urgent = [one for one in reading if now_s >= one.arrived_s + target_s(one.priority)][:1]
    if urgent and rows and now_s >= urgent[0].arrived_s + 2 * target_s(urgent[0].priority):
        shared = prompt_rows.share(reading, decoding, rows, now_s)
        half = min(urgent[0].unread_tokens, max(1, chunk_tokens // 2), (rows + 1) // 2)
        assert dict(shared)[urgent[0]] >= half


arriving = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 600), st.integers(1, 60_000)),
        st.integers(1, 400),
        st.sampled_from(PriorityClass),
    ),
    max_size=15,
)


@settings(max_examples=40, deadline=None)
@example(target=P0, share_of_target=1.0, hostile=[[(512, 100, P0)] * 8])
@example(target=P1, share_of_target=1.0, hostile=[[(512, 400, P0)] * 8])
@given(
    target=st.sampled_from([P0, P1]),
    share_of_target=st.floats(0.01, 1.0),
    hostile=st.lists(arriving, min_size=1, max_size=6),
)
def test_no_prompt_waits_more_than_four_times_its_target_whatever_arrives(
    target: PriorityClass, share_of_target: float, hostile: list[list[tuple[int, int, PriorityClass]]]
) -> None:
    """As long as its class allows; passes take about what they take on an H200, one token an answer."""
    planner = Scheduler(num_slots=64, num_pages=10**6, page_tokens=64, pass_tokens=ROWS, chunk_tokens=CHUNK)
    victim = request("victim", max(1, int(16_000 * target_s(target) * share_of_target)), target)
    planner.add(victim)
    now_s, count = 0.0, 0
    for arrivals in cycle(hostile):
        plan = planner.schedule(now_s)
        answering = sum(len(span.tokens) == 1 for span in plan.spans)
        now_s += (8 + 0.35 * answering if answering else 0) / 1e3
        now_s += max(0.012, (plan.num_tokens - answering) * 0.048e-3)
        planner.apply(draw(plan))
        if victim.state is not RequestState.READING:
            break
        for tokens, answer, priority in arrivals:
            count += 1
            planner.add(request(str(count), tokens, priority, arrived_s=now_s, max_answer_tokens=answer))
    assert now_s <= 4 * target_s(target)


@settings(max_examples=30, deadline=None)
@given(
    passes=st.integers(1, 40),
    now_s=st.floats(0.0, 1000.0),
    decoding=st.integers(0, 28),
    documents=st.integers(0, 3),
    answer=st.integers(1, 60_000),
)
def test_a_question_is_read_in_the_very_next_pass_beside_a_document(
    passes: int, now_s: float, decoding: int, documents: int, answer: int
) -> None:
    """However long its answer may be, documents overdue or not, every running answer with a full draft."""
    planner = Scheduler(
        num_slots=33,
        num_pages=20_000,
        page_tokens=64,
        pass_tokens=ROWS,
        chunk_tokens=CHUNK,
    )
    for number in range(decoding):
        planner.add(request(f"running {number}", 4, P0, max_answer_tokens=10_000))
    planner.apply(draw(planner.schedule(0.0)))
    planner.add(request("document", 200_000, P3, max_answer_tokens=10_000))
    for number in range(documents):
        planner.add(request(f"document {number}", 33_000, P2, max_answer_tokens=10_000))
    for _ in range(passes):
        planner.apply(draw(planner.schedule(now_s)))
    planner.add(request("question", 300, P4, arrived_s=now_s, max_answer_tokens=answer))

    plan = planner.schedule(now_s, lambda rooms: {name: (9,) * room for name, room in rooms.items()})
    (span,) = (span for span in plan.spans if span.request == "question")
    assert (len(span.tokens), span.draws) == (300, True)
    # documents that are read meanwhile have drafts as well
    assert sum(len(one.draft) == MAX_DRAFT_TOKENS for one in plan.spans) >= decoding

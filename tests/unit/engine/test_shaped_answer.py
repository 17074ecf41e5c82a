"""An answer's state in its shape: what is allowed along a draft is what is allowed token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from sparkle.engine.settings import default_model
from sparkle.engine.shaped_answer import Allowed, ShapedAnswer
from sparkle.engine.shapes import Shapes
from sparkle.errors import GrammarTooComplex, MatcherFailed
from sparkle.text.endings import Endings
from sparkle.text.matcher import Matcher
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.shapes import PERSON, of_lark, of_schema, vocabulary

TOKENIZER = Tokenizer.load(default_model())
TOKENS = TOKENIZER.vocab_size
ROWS = TOKENS + 40
ENDS = (TOKENIZER.added_tokens["<|im_end|>"], TOKENIZER.added_tokens["<|endoftext|>"])
VOCABULARY = vocabulary(ROWS, ENDS)
THINK = TOKENIZER.added_tokens["</think>"]
LEAD = tuple(TOKENIZER.encode("\n\n"))
ENDINGS = Endings(TOKENIZER, rows=ROWS)
SPACES = {token for token in range(TOKENS) if not TOKENIZER.token_bytes(token).strip()}
SHAPES = {
    "schema": of_schema(PERSON, VOCABULARY),
    "any number": of_schema({"type": "number"}, VOCABULARY),
    "words": of_lark('start: WORD ("," WORD)*\nWORD: /[a-c]{1,3}/', VOCABULARY),
    "a tag": of_lark("start: /[ab]*/ <tool_call> /x/", VOCABULARY),
}


def answer_in(
    shape: Shape, *, max_tokens: int = 500, thinks: bool = False, complete: bool = False
) -> ShapedAnswer:
    given = Shape(
        compiled=shape.compiled,
        begins_after=THINK if thinks else None,
        lead_in=LEAD if thinks else (),
        complete=complete,
    )
    return ShapedAnswer(given, rows=ROWS, end_tokens=ENDS, max_tokens=max_tokens, find_ending=ENDINGS.find)


def may_follow(answer: ShapedAnswer) -> set[int] | None:
    """The tokens that may be drawn now; None behind the end."""
    if answer.ended:
        return None
    allowed = answer.allowed(())
    rows = allowed.free + len(allowed.given) + (allowed.grammar is not None)
    assert rows == 1
    if allowed.free:
        return set(range(TOKENS)) - {*ENDS}
    if allowed.given:
        return {allowed.given[0]}
    return bits(answer.matcher.allowed())


def bits(mask: bytes) -> set[int]:
    return {token for token in range(TOKENS) if mask[token // 8] >> token % 8 & 1}


def rows_of(answer: ShapedAnswer, allowed: Allowed) -> list[set[int] | None]:
    """What each row of `allowed` lets follow."""
    rows: list[set[int] | None] = [set(range(TOKENS)) - {*ENDS}] * allowed.free
    rows += [{token} for token in allowed.given]
    if allowed.grammar is not None:
        ahead = answer.matcher.copy()
        rows.append(bits(ahead.allowed()))
        for token in allowed.grammar:
            ahead.accept([token])
            rows.append(None if ahead.ended else bits(ahead.allowed()))
    return rows


def written(tokens: Sequence[int]) -> str:
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode(errors="replace")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_allowed_along_a_draft_is_what_is_allowed_token_by_token(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SHAPES)))
    thinks = data.draw(st.booleans())
    ahead, answer = (answer_in(SHAPES[name], thinks=thinks) for _ in range(2))
    tokens = list[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        # a draft that follows the rules as far as it goes, and then perhaps does not
        draft, expected = list[int](), [may_follow(ahead)]
        for _ in range(data.draw(st.integers(0, 6))):
            allowed = may_follow(ahead)
            if allowed is None:
                break
            likely = sorted({THINK, *ENDS} & allowed) + sorted(allowed - SPACES or allowed)[:300]
            draft.append(data.draw(st.sampled_from(likely)))
            ahead.accept(draft[-1:])
            expected.append(may_follow(ahead))
        wrong = data.draw(st.lists(st.integers(0, TOKENS - 1) | st.sampled_from(ENDS), max_size=2))
        if wrong and expected[-1] is not None and wrong[0] in expected[-1]:
            wrong = []
        assert answer.count_allowed([*draft, *wrong]) == len(draft)
        got = rows_of(answer, answer.allowed([*draft, *wrong]))
        assert [row for row in got if row is not None] == [row for row in expected if row is not None]
        forced = answer.forced()
        assert answer.count_allowed(forced) == len(forced)
        answer.accept(draft)
        tokens += draft
        assert answer.ended == ahead.ended
        if answer.ended:
            break
    # whoever goes on from the same tokens stands at the same place
    later = answer_in(SHAPES[name], thinks=thinks)
    later.accept(tokens)
    assert may_follow(later) == may_follow(answer)


def test_thinking_may_be_anything_but_an_end_and_the_shape_begins_behind_it_also_inside_a_draft() -> None:
    answer = answer_in(SHAPES["words"], thinks=True)
    a, comma = TOKENIZER.encode("a")[0], TOKENIZER.encode(",")[0]
    assert answer.allowed([5, 7]) == Allowed(free=3, given=(), grammar=None)
    assert answer.count_allowed([5, ENDS[0], 7]) == 1
    assert answer.forced() == []
    # the last refused one is a comma without a word
    draft = [5, THINK, *LEAD, a, comma, comma]
    assert answer.count_allowed(draft) == len(draft) - 1
    assert answer.allowed(draft) == Allowed(free=2, given=LEAD, grammar=(a, comma))
    assert answer.allowed([5, THINK, a]) == Allowed(free=2, given=LEAD[:1], grammar=None)
    answer.accept([5, THINK])
    assert answer.forced()[: len(LEAD)] == [*LEAD]
    answer.accept([*LEAD, a])
    # what ends thinking is a token like any other now
    assert answer.count_allowed([THINK]) == 0
    answer.accept([ENDS[1]])
    assert answer.ended


@pytest.mark.parametrize("wrong", [[5, ENDS[0]], [THINK, 5], [THINK, *LEAD, TOKENIZER.encode("z")[0]]])
def test_a_token_that_no_mask_allowed_is_an_error(wrong: list[int]) -> None:
    answer = answer_in(SHAPES["words"], thinks=True)
    with pytest.raises(MatcherFailed):
        answer.accept(wrong)


def test_where_only_the_end_may_follow_it_is_forced() -> None:
    answer = answer_in(of_lark('start: "a"', VOCABULARY))
    assert answer.forced() == TOKENIZER.encode("a")
    answer.accept(TOKENIZER.encode("a"))
    assert answer.forced() == [ENDS[0]]


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 14, 25, 60])
@pytest.mark.parametrize("thinks", [False, True])
def test_an_answer_that_has_to_be_complete_is_closed_in_time_or_there_was_no_room(
    max_tokens: int, thinks: bool
) -> None:
    """Whoever draws takes tokens that open more and more, several at once, and is told to draw again."""
    shape = of_schema({"type": "array", "items": {"$ref": "#"}}, VOCABULARY)
    answer = answer_in(shape, max_tokens=max_tokens, thinks=thinks, complete=True)
    shortest = [*([THINK, *LEAD] if thinks else []), *TOKENIZER.encode("[]"), ENDS[0]]
    opening = TOKENIZER.encode("[")[0]
    tokens = list[int]()
    while not answer.ended and len(tokens) < max_tokens:
        forced = answer.forced()
        if forced and answer.count_allowed([opening]) == 0:
            drawn = forced[:1]
        else:
            drawn = [opening] * min(3, max_tokens - len(tokens))
        count = answer.settle(drawn)
        if not count:
            assert answer.count_allowed(answer.forced()) == len(answer.forced()) <= max_tokens - len(tokens)
            drawn = answer.forced()[:2]
            count = answer.settle(drawn)
            assert count == len(drawn)
        drawn = drawn[:count]
        answer.accept(drawn)
        tokens += drawn
    assert answer.ended == (max_tokens >= len(shortest))
    if answer.ended:
        jsonschema.validate(json.loads(written(tokens[tokens.index(THINK) + 1 :] if thinks else tokens)), {})
        # what closes it is spelled in fewer tokens than what was opened
        assert max_tokens // 2 < len(tokens) <= max_tokens


def test_a_long_answer_that_has_room_is_not_closed() -> None:
    answer = answer_in(SHAPES["schema"], max_tokens=500, complete=True)
    for token in TOKENIZER.encode('{"name": "hello world", "age": 12'):
        assert answer.settle([token]) == 1
        answer.accept([token])
    assert not answer.ended


def test_a_lost_state_drafts_nothing_and_is_told_when_tokens_are_accepted() -> None:
    shapes = Shapes(rows=ROWS, end_tokens=ENDS, find_ending=ENDINGS.find)
    lost = shapes.start("lost", SHAPES["words"], max_tokens=9)
    shapes.start("sound", SHAPES["words"], max_tokens=9)
    with pytest.raises(MatcherFailed):
        lost.matcher.accept([5])
    a = TOKENIZER.encode("a")
    assert (shapes.count_allowed("lost", a), shapes.forced("lost", 9)) == (0, ())
    assert shapes.count_allowed("sound", [*a, 5]) == 1
    assert (shapes.count_allowed("unshaped", [5, 6]), shapes.forced("unshaped", 9)) == (2, ())
    with pytest.raises(MatcherFailed):
        shapes.accept("lost", a)
    shapes.accept("sound", [*a, ENDS[0]])
    shapes.accept("unshaped", [5])
    assert [shapes.is_complete(name) for name in ("lost", "sound", "unshaped")] == [False, True, False]
    for name in ("lost", "sound", "sound"):
        shapes.end(name)
    shapes.start("sound", SHAPES["words"], max_tokens=9)


def test_a_limit_of_the_library_is_told_as_one() -> None:
    grammar = LLMatcher.grammar_from_lark("start: /(([a-z]{1,50}){1,50}){1,50}/")
    for limits in (
        LLParserLimits(verbose_errors=False, step_lexer_fuel=20),
        LLParserLimits(verbose_errors=False, step_max_items=2),
    ):
        compiled = LLMatcher(VOCABULARY, grammar, log_level=0, limits=limits)
        state = Matcher(compiled, rows=ROWS, end_tokens=ENDS)
        with pytest.raises(GrammarTooComplex):
            state.allowed()


@pytest.mark.parametrize("max_tokens", [40, 150, 400])
def test_what_is_opened_all_the_time_is_closed_in_time(max_tokens: int) -> None:
    """Each token opens four arrays, or as many as a token can."""
    answer = answer_in(of_schema({"type": "array"}, VOCABULARY), max_tokens=max_tokens, complete=True)
    opening = max((TOKENIZER.encode("[" * count) for count in (1, 2, 3, 4)), key=lambda one: -len(one))[:1]
    tokens = list[int]()
    while not answer.ended:
        if not answer.settle(opening):
            break
        answer.accept(opening)
        tokens += opening
    assert len(tokens) >= max_tokens // 2 - 40
    ending = answer.forced()
    answer.accept(ending)
    assert answer.ended
    assert len(tokens) + len(ending) <= max_tokens
    json.loads(written([*tokens, *ending]))


@pytest.mark.parametrize("schema", [{"type": "object"}, True], ids=["object", "any"])
def test_an_answer_of_any_tokens_is_completed_in_time(schema: dict[str, object] | bool) -> None:
    """Whatever is drawn, to the last token there is an ending: it may be the one found a token before."""
    shape = of_schema(schema, VOCABULARY)
    for seed in range(8):
        draw, answer = Random(seed), answer_in(shape, max_tokens=40, complete=True)
        written: list[int] = []
        while not answer.ended and len(written) < 40:
            # an end only where nothing else may come: each answer is cut by its length
            choice = sorted((may_follow(answer) or set()) - {*ENDS}) or [ENDS[0]]
            token = draw.choice(choice)
            if not answer.settle([token]):
                token = answer.allowed(()).given[0]
            answer.accept([token])
            written.append(token)
        text = b"".join(map(TOKENIZER.token_bytes, written)).decode()
        assert answer.ended, (seed, text)
        jsonschema.validate(json.loads(text), schema)

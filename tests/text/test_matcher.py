"""What a grammar allows along a draft is what it allows token by token, and a lost state is never silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from sparkle.errors import ConfigError, MatcherFailed
from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.mask_filler import DraftMasks, MaskFiller, words_of
from sparkle.text.matcher import Matcher
from sparkle.text.schema_limits import SchemaLimits
from tests.shapes import PERSON

TINY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
TOKENS = 8192
ROWS = TOKENS + 40  # a head may have more rows than there are tokens, and no whole number of words
END_TOKENS = (8161, 8159)
VOCABULARY = read_vocabulary(TINY, rows=ROWS, end_tokens=END_TOKENS)
SPACES = {token for token in range(TOKENS) if not VOCABULARY.decode_bytes([token]).strip()}


def compiled(schema: object) -> LLMatcher:
    grammar = json_schema_grammar(schema, SchemaLimits())
    return LLMatcher(VOCABULARY, grammar, log_level=0, limits=parser_limits())


def matcher_of(schema: object) -> Matcher:
    return Matcher(compiled(schema), rows=ROWS, end_tokens=END_TOKENS)


def spelled(text: str) -> list[int]:
    return VOCABULARY.tokenize_str(text)


def empty_masks(rows: int) -> memoryview:
    """Masks in which every bit is set."""
    words = words_of(ROWS)
    return memoryview(bytearray(b"\xff" * (4 * rows * words))).cast("i", (rows, words))


def allowed_in(masks: memoryview, row: int) -> set[int]:
    words = words_of(ROWS)
    octets = masks.cast("B")[row * 4 * words : (row + 1) * 4 * words]
    return {
        8 * place + bit for place, octet in enumerate(octets) if octet for bit in range(8) if octet >> bit & 1
    }


def masks_along(matcher: Matcher, draft: list[int]) -> list[set[int]]:
    """What is allowed now and behind each token of a draft."""
    masks = empty_masks(len(draft) + 1)
    assert MaskFiller(rows=ROWS, threads=1).fill([DraftMasks(matcher, 0, draft)], masks) == []
    return [allowed_in(masks, row) for row in range(len(draft) + 1)]


def test_an_answer_goes_from_its_first_token_to_its_end() -> None:
    matcher = matcher_of(PERSON)
    matcher.accept(spelled('{"name": "hello world", "age": 12'))
    assert (matcher.may_end(), matcher.must_end(), matcher.ended) == (False, False, False)
    matcher.accept(spelled("}"))
    assert (matcher.may_end(), matcher.must_end(), matcher.ended) == (True, True, False)
    assert masks_along(matcher, []) == [set(END_TOKENS)]
    matcher.accept([END_TOKENS[1]])
    assert matcher.ended
    assert matcher.count_allowed([1]) == 0
    assert matcher.forced() == []


def test_an_answer_that_may_end_may_also_go_on() -> None:
    matcher = matcher_of({"type": "integer"})
    matcher.accept(spelled("12"))
    assert (matcher.may_end(), matcher.must_end()) == (True, False)
    assert masks_along(matcher, [])[0] >= {*END_TOKENS, *spelled("7")}


@pytest.mark.parametrize("end", END_TOKENS)
def test_a_draft_counts_up_to_its_first_refused_token_or_its_end(end: int) -> None:
    matcher = matcher_of(PERSON)
    whole = spelled('{"name": "hello world", "age": 120}')
    assert matcher.count_allowed(whole) == len(whole)
    assert matcher.count_allowed([*whole, end, 5]) == len(whole) + 1
    assert matcher.count_allowed([*whole[:3], 5, *whole[3:]]) == 3
    assert matcher.count_allowed([end]) == 0
    assert matcher.count_allowed([]) == 0


@pytest.mark.parametrize("no_token", [-1, -(2**40), TOKENS, ROWS - 1, ROWS, 2**32, 2**70])
def test_an_id_without_a_token_cuts_the_draft_and_breaks_nothing(no_token: int) -> None:
    matcher = matcher_of(PERSON)
    start = spelled('{"name": ')
    assert matcher.count_allowed([*start, no_token, 5]) == len(start)
    assert matcher.count_allowed([no_token]) == 0
    matcher.accept(start)
    assert not matcher.failed


def test_forced_tokens_are_those_that_must_follow() -> None:
    matcher = matcher_of(PERSON)
    whole = spelled('{"name": "hello world"')
    matcher.accept(whole[:1])
    assert matcher.forced() == whole[1:2]
    matcher.accept(whole[1:3])
    assert matcher.forced() == []  # a space or not
    matcher.accept(whole[3:4])
    assert matcher.forced() == whole[4:6]
    assert matcher.count_allowed(matcher.forced()) == 2


@pytest.mark.parametrize(
    "wrong", [[5], [-1], [ROWS], [2**40], [*spelled("{"), ROWS], [END_TOKENS[0]], [*END_TOKENS]]
)
def test_a_token_that_is_refused_is_an_error_and_stays_one(wrong: list[int]) -> None:
    matcher = matcher_of(PERSON)
    with pytest.raises(MatcherFailed):
        matcher.accept(wrong)
    assert matcher.failed
    for call in (matcher.may_end, matcher.must_end, matcher.forced):
        with pytest.raises(MatcherFailed, match="its state was lost"):
            call()
    for ask in (matcher.count_allowed, matcher.accept):
        for tokens in (spelled("{"), []):
            with pytest.raises(MatcherFailed, match="its state was lost"):
                ask(tokens)


def test_nothing_follows_the_end() -> None:
    matcher = matcher_of(PERSON)
    matcher.accept([*spelled('{"name": "hello world", "age": 3}'), END_TOKENS[0]])
    with pytest.raises(MatcherFailed, match="cut the draft first"):
        MaskFiller(rows=ROWS, threads=1).fill([DraftMasks(matcher, 0, [])], empty_masks(1))
    matcher.accept([])
    with pytest.raises(MatcherFailed, match="behind the end of its answer"):
        matcher.accept([END_TOKENS[0]])


def test_a_state_that_is_lost_while_masks_are_made_costs_its_own_answer_only() -> None:
    # no schema that is let through loses its state so soon
    endless = LLMatcher(VOCABULARY, LLMatcher.grammar_from_json_schema('{"$ref": "#"}'), log_level=0)
    lost, sound = Matcher(endless, rows=ROWS, end_tokens=END_TOKENS), matcher_of(PERSON)
    masks = empty_masks(5)
    filler = MaskFiller(rows=ROWS, threads=2)
    draft = spelled('{"name": "')[:2]
    wanted = [DraftMasks(lost, 0, []), DraftMasks(sound, 1, draft), DraftMasks(lost, 4, [])]
    assert filler.fill(wanted[:2], masks) == [0]
    assert filler.fill(wanted[1:], masks) == [1]  # known to be lost: not asked again
    assert [allowed_in(masks, row) for row in (1, 2, 3)] == masks_along(sound, draft)
    assert allowed_in(masks, 4) >= set(range(TOKENS))  # not touched
    with pytest.raises(MatcherFailed):
        lost.accept([END_TOKENS[0]])


def test_control_tokens_and_rows_without_a_token_are_in_no_mask() -> None:
    matcher = matcher_of({"type": "string"})
    added = {token for token in range(TOKENS) if VOCABULARY.is_special_token(token)}
    assert added >= {8158 + 1, *END_TOKENS}
    inside = masks_along(matcher, spelled('"a'))[-1]
    assert len(inside) > 4_000
    assert not inside & (added | set(range(TOKENS, 32 * words_of(ROWS))))
    for control in ("<tool_call>", "</think>", "<|im_end|>"):
        (token,) = VOCABULARY.tokenize_str(control, parse_special=True)
        assert token not in inside


def test_a_row_behind_an_end_is_not_written() -> None:
    matcher = matcher_of({"type": "integer"})
    draft = [*spelled("7"), END_TOKENS[0]]
    masks = empty_masks(3)
    assert MaskFiller(rows=ROWS, threads=1).fill([DraftMasks(matcher, 0, draft)], masks) == []
    assert END_TOKENS[0] in allowed_in(masks, 1)
    assert len(allowed_in(masks, 2)) == 32 * words_of(ROWS)


def test_masks_must_have_the_room_and_the_form() -> None:
    filler = MaskFiller(rows=ROWS, threads=1)
    wanted = [DraftMasks(matcher_of(PERSON), 1, spelled("{"))]
    with pytest.raises(ConfigError, match="masks have 2 rows but 3 are wanted"):
        filler.fill(wanted, empty_masks(2))
    words = words_of(ROWS)
    for wrong in (
        memoryview(bytes(4 * 3 * words)).cast("i", (3, words)),
        memoryview(bytearray(4 * 3 * (words - 1))).cast("i", (3, words - 1)),
        memoryview(bytearray(4 * 3 * words)),
        empty_masks(6)[::2],
    ):
        with pytest.raises(ConfigError, match=f"writable int32 with {words} words"):
            filler.fill(wanted, wrong)
    with pytest.raises(MatcherFailed, match="cut the draft first"):
        filler.fill([DraftMasks(matcher_of(PERSON), 0, [5])], empty_masks(3))
    with pytest.raises(ConfigError, match="threads is 0"):
        MaskFiller(rows=ROWS, threads=0)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_masks_along_a_draft_are_those_of_each_token_and_any_walk_is_valid(data: st.DataObject) -> None:
    """Walks through the masks, with drafts in front that are partly nonsense, until the answer ends."""
    matcher = matcher_of(PERSON)
    written: list[int] = []
    masks = masks_along(matcher, [])
    while not matcher.ended:
        draft: list[int] = []
        ahead = Matcher(compiled(PERSON), rows=ROWS, end_tokens=END_TOKENS)
        ahead.accept(written)
        expected = [masks[0]]
        for _ in range(data.draw(st.integers(1, 4))):
            # without space where that can be, or the walk takes long to its end
            choice = expected[-1] - SPACES or expected[-1]
            draft.append(data.draw(st.sampled_from(sorted(choice))))
            ahead.accept(draft[-1:])
            if ahead.ended:
                break
            expected.append(masks_along(ahead, [])[0])
        junk = data.draw(st.lists(st.integers(-1, ROWS), max_size=2))
        refused = [token for token in junk[:1] if ahead.ended or token not in expected[-1]]
        assert matcher.count_allowed([*draft, *refused]) == len(draft)
        assert masks_along(matcher, draft)[: len(expected)] == expected
        matcher.accept(draft)
        written += draft
        masks = [expected[-1]]
    answer = json.loads(VOCABULARY.decode_bytes(written[:-1]))
    jsonschema.validate(answer, PERSON)
    assert answer["name"] == "hello world"
    assert 3 <= answer["age"] <= 120


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_was_expected_changes_nothing_whatever_comes(data: st.DataObject) -> None:
    """Two states of one answer, of which one goes ahead by drafts that are taken in part, or not at all."""
    one, other = matcher_of(PERSON), matcher_of(PERSON)
    asked: list[Callable[[], object]] = [one.forced, one.may_end, one.must_end, one.allowed, one.copy]
    while not other.ended:
        draft = walk_from(other, data.draw, most=5)
        one.expect(draft)
        for ask in data.draw(st.lists(st.sampled_from(asked), max_size=1)):
            ask()
        kept = draft[: data.draw(st.integers(0, len(draft)))]
        ahead = other.copy()
        ahead.accept(kept)
        drawn = [*kept, *walk_from(ahead, data.draw, most=1)]
        one.accept(drawn)
        other.accept(drawn)
        assert (one.ended, one.may_end(), one.forced()) == (other.ended, other.may_end(), other.forced())
        assert one.ended or masks_along(one, []) == masks_along(other, [])


def test_a_copy_stands_where_the_answer_stands_not_where_it_is_expected() -> None:
    matcher = matcher_of(PERSON)
    matcher.expect(spelled('{"name": '))
    copy = matcher.copy()
    for one in (copy, matcher):
        assert masks_along(one, []) == masks_along(matcher_of(PERSON), [])
    matcher.expect(spelled('{"name": '))
    matcher.accept([])
    with pytest.raises(MatcherFailed):
        matcher.accept(spelled("hello"))


def walk_from(matcher: Matcher, draw: Callable[[st.SearchStrategy[int]], int], *, most: int) -> list[int]:
    """Tokens that may follow, at most so many, an end the last."""
    ahead, tokens = matcher.copy(), list[int]()
    while len(tokens) < most and not ahead.ended:
        (allowed,) = masks_along(ahead, [])
        # without space where that can be, or the walk takes long to its end
        tokens.append(draw(st.sampled_from(sorted(allowed - SPACES or allowed))))
        ahead.accept(tokens[-1:])
    return tokens

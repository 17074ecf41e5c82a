"""Calls of over fifty sets of tools: right ones are let through and read back, wrong ones are not."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from sparkle.errors import GrammarTooComplex, UnsupportedSchema
from sparkle.schemas.answer import Channel
from sparkle.schemas.job import Job, Turn
from sparkle.schemas.tools import NamedTool, Tool, ToolChoice
from sparkle.text.answer_calls import CallPiece
from sparkle.text.answer_text import AnswerText, TextPiece
from sparkle.text.grammar import parser_limits
from sparkle.text.matcher import Matcher
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape_grammar import AnswerGrammar, answer_grammar
from sparkle.text.tokenizer import Tokenizer
from tests.text.matched import TINY, Vocabulary
from tests.text.tool_sets import TOOL_SETS, Arguments, Calls, ToolSet, tool, written

LIMITS = SchemaLimits()
TAGS = re.compile("(</?tool_call>)")


def job(tools: Sequence[Tool], choice: ToolChoice = "auto", *, parallel: bool = True) -> Job:
    return Job(
        messages=[Turn(role="user", content="?")],
        tools=[*tools],
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )


class Kept:
    """Answers to a job, kept to its grammar."""

    def __init__(self, job: Job, tokenizer: Tokenizer, vocabulary: Vocabulary = TINY) -> None:
        self.grammar: AnswerGrammar | None = answer_grammar(job, LIMITS)
        assert self.grammar is not None
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        compiled = LLMatcher(vocabulary.tokens, self.grammar.text, log_level=0, limits=parser_limits())
        assert not compiled.is_error(), compiled.get_error()
        self._compiled = compiled

    def matcher(self) -> Matcher:
        return self._vocabulary.matcher(self._compiled)

    def tokens(self, answer: str) -> list[int]:
        """The answer's tokens, its tags as the tokens that they are."""
        added = self._tokenizer.added_tokens
        parts = [part for part in TAGS.split(answer) if part]
        # an inner tag that a text spells is text: the outer ones begin and end a call
        return [
            token
            for part in parts
            for token in ([added[part]] if part in added else self._tokenizer.encode(part))
        ]

    def lets_through(self, tokens: Sequence[int]) -> bool:
        whole = [*tokens, self._vocabulary.end_tokens[0]]
        return self.matcher().count_allowed(whole) == len(whole)

    def drawn(self, chance: random.Random, *, tokens: int) -> list[int] | None:
        """Tokens of an answer drawn with no regard to a model; None where so many were not enough."""
        state = self._compiled.deep_copy()
        answer: list[int] = []
        closing = [self._tokenizer.encode(text) for text in ("\n</parameter>\n", '"', "]", "}", ".txt")]
        while len(answer) < tokens:
            # by chance alone no text would ever end
            close = chance.choice(closing)
            if chance.random() < 0.3 and state.validate_tokens(close) == len(close):
                assert state.consume_tokens(close)
                answer += close
                continue
            token = one_of(state.compute_bitmask(), chance)
            if token in TINY.end_tokens:
                return answer
            assert state.consume_token(token)
            answer.append(token)
        return None

    def read(self, tokens: Sequence[int]) -> tuple[str, list[tuple[str, str]]]:
        """The answer's text, and its calls with their arguments' JSON text."""
        assert self.grammar is not None
        answer = AnswerText(self._tokenizer, stop=[], thinking=False, calls=self.grammar.calls)
        pieces = [piece for token in tokens for piece in answer.push(token)] + answer.finish()
        texts = [piece for piece in pieces if isinstance(piece, TextPiece)]
        assert all(piece.channel is Channel.ANSWER for piece in texts)
        calls: list[tuple[str, str]] = []
        for piece in pieces:
            if isinstance(piece, CallPiece):
                if piece.name is not None:
                    calls.append((piece.name, ""))
                name, so_far = calls[piece.index]
                assert piece.arguments_start == len(so_far)
                calls[piece.index] = (name, so_far + piece.arguments)
        assert answer.called is bool(calls)
        return "".join(piece.text for piece in texts), calls


def one_of(mask: bytes, chance: random.Random) -> int:
    """One of the tokens that a mask allows."""
    for _ in range(500):
        token = chance.randrange(TINY.rows)
        if mask[token // 8] >> token % 8 & 1:
            return token
    return chance.choice([token for token in range(TINY.rows) if mask[token // 8] >> token % 8 & 1])


def call_tokens(
    kept: Kept, tokenizer: Tokenizer, name: str, arguments: Arguments, quoted: frozenset[str]
) -> list[int]:
    """A call whose texts may spell tags themselves."""
    inside = written(name, arguments, quoted).removeprefix("<tool_call>").removesuffix("</tool_call>")
    added = tokenizer.added_tokens
    return [added["<tool_call>"], *tokenizer.encode(inside), added["</tool_call>"]]


def test_there_are_50_sets_of_tools() -> None:
    assert len(TOOL_SETS) >= 50


@pytest.mark.parametrize("tool_set", TOOL_SETS, ids=lambda tool_set: tool_set.name)
def test_right_calls_are_let_through_and_read_back_and_wrong_ones_are_not(
    tool_set: ToolSet, tiny: Tokenizer
) -> None:
    assert wrongly_judged(Kept(job(tool_set.tools), tiny), tiny, tool_set) == []


def test_also_with_the_real_tokens(real: Tokenizer, real_vocabulary: Vocabulary) -> None:
    for tool_set in TOOL_SETS:
        kept = Kept(job(tool_set.tools), real, real_vocabulary)
        assert (tool_set.name, wrongly_judged(kept, real, tool_set)) == (tool_set.name, [])


def wrongly_judged(kept: Kept, tokenizer: Tokenizer, tool_set: ToolSet) -> Calls:
    """Right calls that are not let through or not read back, and wrong ones that are let through."""
    wrong: Calls = []
    for right, calls in ((True, tool_set.right), (False, tool_set.wrong)):
        for name, arguments in calls:
            tokens = call_tokens(kept, tokenizer, name, arguments, tool_set.quoted)
            through = kept.lets_through(tokens)
            read = right and kept.read(tokens)
            as_written = ("", [(name, json.dumps(arguments, ensure_ascii=False))])
            if through is not right or (right and read != as_written):
                wrong.append((name, arguments))
    return wrong


@pytest.mark.parametrize("tool_set", TOOL_SETS, ids=lambda tool_set: tool_set.name)
def test_prose_and_then_all_calls_in_a_row(tool_set: ToolSet, tiny: Tokenizer) -> None:
    kept = Kept(job(tool_set.tools), tiny)
    newline = tiny.encode("\n")
    calls = [call_tokens(kept, tiny, name, given, tool_set.quoted) for name, given in tool_set.right]
    tokens = tiny.encode("First <tool_call> and\n<function=x> as text.\n\n")
    for place, call in enumerate(calls):
        tokens += [*(newline if place else ()), *call]
    assert kept.lets_through(tokens)
    text, read = kept.read(tokens)
    assert text == "First <tool_call> and\n<function=x> as text."
    assert read == [(name, json.dumps(given, ensure_ascii=False)) for name, given in tool_set.right]


@pytest.mark.parametrize("tool_set", TOOL_SETS, ids=lambda tool_set: tool_set.name)
def test_what_is_drawn_at_random_is_valid_under_the_tools_schema(tool_set: ToolSet, tiny: Tokenizer) -> None:
    schemas = {one.name: one.parameters or {} for one in tool_set.tools}
    kept = Kept(job(tool_set.tools, "required"), tiny)
    chance = random.Random(tool_set.name)
    finished = 0
    for _ in range(4):
        tokens = kept.drawn(chance, tokens=400)
        if tokens is None:
            continue
        finished += 1
        text, calls = kept.read(tokens)
        assert text == ""
        assert calls
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[name])
    # by chance hardly a text comes to the end of a pattern
    assert finished or "pattern" in tool_set.name


WEATHER = TOOL_SETS[0].tools[0]
STOP = Tool(name="stop")
PARIS = written("get_weather", {"city": "Paris"})
END = written("stop", {})


@pytest.mark.parametrize(
    ("choice", "parallel", "answer", "through"),
    [
        ("auto", True, "prose", True),
        ("auto", True, f"{PARIS}\n{END}", True),
        ("auto", True, f"{PARIS}{END}", False),
        ("auto", True, f"{PARIS} and more", False),
        ("auto", True, "", False),
        ("auto", False, PARIS, True),
        ("auto", False, f"{PARIS}\n{END}", False),
        ("none", True, "prose", True),
        ("none", True, PARIS, False),
        ("none", True, "prose, then\n\n" + END, False),
        ("required", True, "prose", False),
        ("required", True, "prose\n\n" + PARIS, False),
        ("required", True, PARIS, True),
        ("required", True, f"{PARIS}\n{END}\n{PARIS}", True),
        ("required", False, END, True),
        ("required", False, f"{PARIS}\n{END}", False),
        (NamedTool(name="stop"), True, END, True),
        (NamedTool(name="stop"), True, f"{END}\n{END}", True),
        (NamedTool(name="stop"), True, PARIS, False),
        (NamedTool(name="stop"), False, f"{END}\n{END}", False),
    ],
)
def test_what_the_choice_lets_through(
    choice: ToolChoice, parallel: bool, answer: str, through: bool, tiny: Tokenizer
) -> None:
    kept = Kept(job([WEATHER, STOP], choice, parallel=parallel), tiny)
    assert kept.lets_through(kept.tokens(answer)) is through


def test_a_call_that_text_spells_is_prose(tiny: Tokenizer) -> None:
    kept = Kept(job([WEATHER]), tiny)
    tokens = tiny.encode(PARIS)
    assert kept.lets_through(tokens)
    assert kept.read(tokens)[0] == PARIS


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {}, "b": {"not": {}}}}, "/properties/1/not"),
        ({"anyOf": [{"required": ["a"]}]}, "/anyOf"),
        ({"patternProperties": {"^a": {}}}, "/patternProperties"),
        ({"properties": {"a": {}}, "minProperties": 1}, "/minProperties"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "/maxProperties"),
        ({"type": "array"}, "/type"),
        ({"properties": {"canary>": {}}}, "/properties/0"),
        ({"properties": {"can\nary": {}}}, "/properties/0"),
        ({"properties": {"a": {"$ref": "#"}}}, "/properties/0"),
        ({"properties": {"a": {"$ref": "#/properties/canary"}, "canary": {}}}, "/properties/0"),
    ],
)
def test_what_a_call_cannot_be_kept_to_is_refused_by_its_path(schema: dict[str, Any], path: str) -> None:
    tools = [STOP, Tool(name="canary", parameters=schema)]
    with pytest.raises(UnsupportedSchema) as caught:
        answer_grammar(job(tools), LIMITS)
    assert f"tools.1: schema: {path} " in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_limit_is_told_with_the_tools_place() -> None:
    wide = tool("wide", {"a": {"enum": [*range(20_000)]}})
    with pytest.raises(GrammarTooComplex, match=r"^tools\.1: schema: has "):
        answer_grammar(job([STOP, wide]), LIMITS)


def test_without_strict_values_are_kept_to_their_types(tiny: Tokenizer) -> None:
    loose = Tool(
        name="do",
        strict=False,
        parameters={
            "type": "object",
            "properties": {
                "a": {"type": "string", "not": {"const": "x"}},
                "n": {"type": "integer", "not": {}},
            },
            "required": ["a"],
            "anyOf": [{}],
        },
    )
    kept = Kept(job([loose]), tiny)
    assert kept.grammar is not None
    assert not kept.grammar.exact
    assert kept.lets_through(kept.tokens(written("do", {"a": "x", "n": 5})))
    assert not kept.lets_through(kept.tokens(written("do", {"a": "x", "n": [5]})))
    assert not kept.lets_through(kept.tokens(written("do", {"n": 5})))


def test_without_strict_what_can_be_enforced_is(tiny: Tokenizer) -> None:
    kept = Kept(job([WEATHER.model_copy(update={"strict": False})]), tiny)
    assert kept.grammar is not None
    assert kept.grammar.exact
    assert not kept.lets_through(kept.tokens(written("get_weather", {"city": "x", "unit": "kelvin"})))

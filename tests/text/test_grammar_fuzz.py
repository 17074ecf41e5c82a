"""Whatever is sent for a shape ends in a typed error or in valid answers, and the next one is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from sparkle.errors import GrammarError, GrammarTooComplex
from sparkle.text.answer_check import AnswerCheck
from sparkle.text.grammar import json_schema_grammar, parser_limits
from sparkle.text.grammar_trial import GrammarTrial, TrialLimits
from sparkle.text.schema_limits import SchemaLimits
from tests.text.matched import TINY
from tests.text.random_schemas import larks, patterns, schemas
from tests.text.walks import Walker

CHECKPOINT = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
GOOD = json_schema_grammar({"type": "object"}, SchemaLimits())
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)


@pytest.fixture(scope="module")
def trial() -> Iterator[GrammarTrial]:
    limits = TrialLimits(compile_s=2.0)
    with GrammarTrial(CHECKPOINT, rows=TINY.rows, end_tokens=TINY.end_tokens, limits=limits) as trial:
        yield trial


def compiled(trial: GrammarTrial, grammar: str) -> LLMatcher | None:
    """As an engine does it; None for a grammar that is refused."""
    try:
        trial.require_compiles(grammar)
    except GrammarError:
        return None
    return LLMatcher(TINY.tokens, grammar, log_level=0, limits=parser_limits())


def valid_or_refused(trial: GrammarTrial, schema: object) -> None:
    try:
        grammar = compiled(trial, json_schema_grammar(schema, SchemaLimits()))
        check = AnswerCheck(cast(Mapping[str, object], schema))
    except GrammarError:
        return
    if grammar is None:
        return
    walker = Walker(TINY, seed=0)
    for free_tokens in (0, 10):
        answer = walker.answer(grammar, free_tokens=free_tokens, most_tokens=120)
        assert answer is None or check.holds(answer), (schema, answer)


def walked_or_refused(trial: GrammarTrial, grammar: str) -> None:
    made = compiled(trial, grammar)
    if made is not None:
        try:
            Walker(TINY, seed=0).answer(made, free_tokens=20, most_tokens=40)
        except GrammarError:
            return  # over a limit in the middle: a typed error of its own job


def try_grammars(trial: GrammarTrial, lark: str, pattern: str, octets: bytes) -> None:
    """Of each kind one, and the bytes as one themselves."""
    text = octets.decode("latin1")
    for grammar in (lark, LLMatcher.grammar_from_regex(pattern), text, f"start: {text}"):
        walked_or_refused(trial, grammar)


@FEW
@given(schema=schemas())
def test_random_schemas(trial: GrammarTrial, schema: object) -> None:
    valid_or_refused(trial, schema)


@FEW
@given(lark=larks(), pattern=patterns(), octets=st.binary(max_size=80))
def test_random_grammars_patterns_and_bytes(
    trial: GrammarTrial, lark: str, pattern: str, octets: bytes
) -> None:
    try_grammars(trial, lark, pattern, octets)


@FEW
@given(octets=st.binary(max_size=40), cut=st.integers(0, 200))
def test_bytes_in_a_schema(trial: GrammarTrial, octets: bytes, cut: int) -> None:
    text = json.dumps({"properties": {"a": {"type": "string", "pattern": "^a"}}, "required": ["a"]})
    broken = text[:cut] + octets.decode("latin1") + text[cut:]
    trial.require_compiles(GOOD)
    try:
        schema = json.loads(broken)
    except ValueError:
        walked_or_refused(trial, broken)
    else:
        valid_or_refused(trial, schema)


def doubling(keyword: str, levels: int) -> object:
    """Every definition has the next one twice."""
    definitions: dict[str, object] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "integer"}}}


def overlapping(names: int) -> object:
    """Objects with a property each, joined."""
    values = {"anyOf": [{"const": number} for number in range(9)]}
    return {"allOf": [{"properties": {f"p{number}": values}} for number in range(names)]}


HOSTILE: dict[str, object] = {
    "two numbers whose multiples take many states": {"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]},
    "anyOf, doubled 40 times": doubling("anyOf", 40),
    "allOf, doubled 40 times": doubling("allOf", 40),
    "oneOf, doubled 40 times": doubling("oneOf", 40),
    "all of 16 of 4": {"allOf": [{"anyOf": [{"minimum": i * j} for j in range(4)]} for i in range(16)]},
    "many properties, each of many": overlapping(200),
    "a pattern beside a long text": {"type": "string", "pattern": "^(ab?)*$", "maxLength": 10**9},
    "patterns that hold together hardly": {"allOf": [{"pattern": f"^(.*a.{{{n}}})*$"} for n in range(1, 12)]},
    "a pattern of many states": {"type": "string", "pattern": "(.*a.{12}){3}"},
    "repeats in repeats": {"type": "string", "pattern": "^((a{1,9}b?){1,9}c?){1,9}$"},
    "9,000 values": {"enum": [f"value {i:05}" * 2 for i in range(9_000)]},
    "a tuple of 2,000": {"prefixItems": [{"type": "integer"}] * 2_000},
    "a list of up to a billion": {"type": "array", "maxItems": 10**9},
    "a list of at least a million": {"type": "array", "minItems": 10**6},
    "a text of at least a billion": {"type": "string", "minLength": 10**9},
    "properties by the thousand": {"properties": {f"p{i}": {"type": "string"} for i in range(3_000)}},
    "required by the thousand": {"required": [f"p{i}" for i in range(5_000)]},
    "40 patterns for names": {"patternProperties": {f"^a{{{i}}}b*$": {"type": "integer"} for i in range(40)}},
    "arrays in one another": json.loads('{"items":' * 49 + "{}" + "}" * 49),
    "a whole that refers to itself inside": {
        "items": {"type": "array", "prefixItems": [{"$ref": "#/items"}], "items": {"const": 1}},
        "anyOf": [{"$ref": "#/items"}],
    },
    "one long text": {"const": "x" * 200_000},
    "60 long texts": {"enum": [f"{i:02}" + "x" * 4_000 for i in range(60)]},
    "a name of 4,000 letters": {"type": "object", "required": ["x" * 4_000]},
    "300 KB": {"description": "x" * 300_000},
}


@pytest.mark.parametrize("title", HOSTILE)
def test_hostile_schemas_cost_their_own_job_at_most(trial: GrammarTrial, title: str) -> None:
    try:
        grammar = json_schema_grammar(HOSTILE[title], SchemaLimits())
    except GrammarError:
        pass
    else:
        walked_or_refused(trial, grammar)
    trial.require_compiles(GOOD)


@pytest.mark.parametrize(
    "grammar",
    [
        "start: start",
        "start: start start | /a/",
        "start: (((/a/*)*)*)*",
        "start: /(a?){2000}a{2000}/",
        "start: /.*a.{30}/",
        'start: "x"{1000000}',
        'start: "x"{0,100000} "y"{0,100000}',
        "start: /((a{1,50}){1,50}){1,50}/",
        "start: " + "(" * 50_000,
        "start: " + " | ".join(f'"w{i}"' for i in range(30_000)),
        "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(64)) + 'r64: "a"\nstart: r0\n',
        "start: %json {" + '"allOf":[{' * 2_000,
    ],
    ids=range(12),
)
def test_hostile_grammars_cost_their_own_job_at_most(trial: GrammarTrial, grammar: str) -> None:
    walked_or_refused(trial, grammar)
    trial.require_compiles(GOOD)


def test_what_runs_away_is_too_complex(trial: GrammarTrial) -> None:
    quick = TrialLimits(compile_s=1.0)
    grammar = json_schema_grammar({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]}, SchemaLimits())
    with (
        GrammarTrial(CHECKPOINT, rows=TINY.rows, end_tokens=TINY.end_tokens, limits=quick) as other,
        pytest.raises(GrammarTooComplex, match="1 s"),
    ):
        other.require_compiles(grammar)

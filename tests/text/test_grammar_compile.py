"""A grammar that ends or holds up its compiler costs its own job only: an error, and the next compiles."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from llguidance import LLMatcher

from sparkle.errors import ConfigError, EngineError, GrammarTooComplex, UnsupportedSchema
from sparkle.text.grammar import json_schema_grammar, read_vocabulary
from sparkle.text.grammar_compile import GrammarCompiler
from sparkle.text.grammar_trial import GrammarTrial, TrialLimits
from sparkle.text.schema_limits import SchemaLimits

TINY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
ROWS = 8192
END_TOKENS = (8161, 8159)
LIMITS = SchemaLimits()
GOOD = json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}}, LIMITS)


@pytest.fixture(scope="module")
def trial() -> Iterator[GrammarTrial]:
    limits = TrialLimits(compile_s=2.0)
    with GrammarTrial(TINY, rows=ROWS, end_tokens=END_TOKENS, limits=limits) as trial:
        yield trial


def unchecked(schema: object) -> str:
    """The grammar of a schema that no limit has seen."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def deep_chain() -> object:
    definitions: dict[str, object] = {f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(3_000)}
    return {"$ref": "#/$defs/0", "$defs": definitions | {"3000": True}}


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(unchecked(deep_chain()), id="its recursion ends the process"),
        pytest.param(
            json_schema_grammar({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]}, LIMITS),
            id="runs away on the product of two numbers",
        ),
        pytest.param(
            unchecked({"enum": [f"value {i}" for i in range(100_000)]}), id="over the compiler's own limit"
        ),
        pytest.param(
            json_schema_grammar(
                {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2_100)}}, LIMITS
            ),
            id="over a limit only behind its first token",
        ),
    ],
)
def test_a_hostile_grammar_is_too_complex_and_the_next_one_compiles(
    trial: GrammarTrial, hostile: str
) -> None:
    trial.require_compiles(GOOD)
    with pytest.raises(GrammarTooComplex, match=r"^schema: does not compile within 2 s and 2048 MiB"):
        trial.require_compiles(hostile)
    trial.require_compiles(GOOD)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "pattern": "kanarienvogel{3"},
        {"type": "string", "pattern": r"^[\x01\x1f]$"},
        {"type": "integer", "minimum": 4, "maximum": 3},
        {"type": "kanarienvogel"},
        {"enum": []},
    ],
)
def test_what_the_compiler_refuses_is_unsupported_and_not_quoted(trial: GrammarTrial, schema: object) -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: cannot be enforced as a whole") as told:
        trial.require_compiles(json_schema_grammar(schema, LIMITS))
    assert "kanarienvogel" not in str(told.value)


def test_a_grammar_that_an_empty_answer_fulfils_is_refused(trial: GrammarTrial) -> None:
    with pytest.raises(UnsupportedSchema):
        trial.require_compiles(LLMatcher.grammar_from_regex("a*"))
    with pytest.raises(UnsupportedSchema):
        trial.require_compiles(unchecked({"$ref": "#"}))
    trial.require_compiles(LLMatcher.grammar_from_regex("a+"))


def test_schemas_that_are_booleans() -> None:
    assert json_schema_grammar(True, LIMITS) == json_schema_grammar({}, LIMITS)
    with pytest.raises(UnsupportedSchema, match="nothing is valid"):
        json_schema_grammar(False, LIMITS)


def test_memory_over_the_limit_ends_the_process_and_not_the_next_grammar() -> None:
    # without the limit of memory this takes longer than a test may
    limits = TrialLimits(compile_s=600.0, memory_bytes=40 * 1024**2)
    runaway = json_schema_grammar({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]}, LIMITS)
    with GrammarTrial(TINY, rows=ROWS, end_tokens=END_TOKENS, limits=limits) as trial:
        with pytest.raises(GrammarTooComplex, match="40 MiB"):
            trial.require_compiles(runaway)
        trial.require_compiles(GOOD)


def test_threads_take_turns(trial: GrammarTrial) -> None:
    refusals: list[int] = []

    def ask(number: int) -> None:
        minimum = {"type": "integer", "minimum": number % 2, "maximum": 0}
        try:
            trial.require_compiles(json_schema_grammar(minimum, LIMITS))
        except UnsupportedSchema:
            refusals.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(refusals) == [1, 3, 5, 7]


def test_a_model_that_is_not_there_is_an_engine_error(tmp_path: Path) -> None:
    trial = GrammarTrial(tmp_path / "none", rows=ROWS, end_tokens=END_TOKENS)
    with trial, pytest.raises(EngineError, match="the grammar compiler did not become ready within 60 s"):
        trial.require_compiles(GOOD)


def test_a_compiled_grammar_allows_what_begins_a_value(trial: GrammarTrial) -> None:
    vocabulary = read_vocabulary(TINY, rows=ROWS, end_tokens=END_TOKENS)
    matcher = GrammarCompiler(vocabulary, trial).compile(GOOD)
    tokens = vocabulary.tokenize_str('{"a": 12}')
    assert matcher.validate_tokens([*tokens, END_TOKENS[0]]) == len(tokens) + 1
    assert matcher.validate_tokens(vocabulary.tokenize_str("[")) == 0


@pytest.mark.parametrize("wrong", ["compile_s", "start_s", "memory_bytes"])
def test_limits_below_anything_are_wrong_settings(wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        TrialLimits(**{wrong: 0})


ORPHAN = f"""
import os, sys, threading
from pathlib import Path
from sparkle.text.grammar import json_schema_grammar
from sparkle.text.grammar_trial import GrammarTrial, TrialLimits
from sparkle.text.schema_limits import SchemaLimits

limits = TrialLimits(compile_s=600.0)
trial = GrammarTrial(Path({str(TINY)!r}), rows={ROWS}, end_tokens={END_TOKENS}, limits=limits)
trial.require_compiles(json_schema_grammar({{"type": "integer"}}, SchemaLimits()))
schema = {{"allOf": [{{"multipleOf": 9_973}}, {{"multipleOf": 9_967}}]}}
grammar = json_schema_grammar(schema, SchemaLimits())
threading.Thread(target=trial.require_compiles, args=(grammar,), daemon=True).start()
print("busy", flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_process_that_runs_away_ends_with_the_one_that_began_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "busy\n"
        [child] = psutil.Process(parent.pid).children()
    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone == [child]

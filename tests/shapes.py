"""Shapes for tests, from schemas and Lark grammars, over sparkle-tiny's vocabulary or a smaller one."""

from __future__ import annotations

from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from sparkle.engine.settings import default_model
from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.known_ways import ways_of_schema
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape import Shape
from tests.text.small_tokenizer import small_tokenizer

PERSON: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"const": "hello world"},
        "age": {"type": "integer", "minimum": 3, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "é"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@cache
def vocabulary(rows: int, end_tokens: tuple[int, ...]) -> LLTokenizer:
    """The bundled checkpoint's, read once."""
    return read_vocabulary(default_model(), rows=rows, end_tokens=end_tokens)


@cache
def small_vocabulary(rows: int, end_tokens: tuple[int, ...]) -> LLTokenizer:
    """That of a few hundred tokens."""
    return LLTokenizer(small_tokenizer().to_str(), n_vocab=rows, eos_token=list(end_tokens))


def of_schema(schema: object, tokens: LLTokenizer, **fields: Any) -> Shape:
    """Kept to a schema; `fields` as Shape has them."""
    known = ways_of_schema(schema)
    return _shape(json_schema_grammar(schema, SchemaLimits()), tokens, {"known": known, **fields})


def of_lark(text: str, tokens: LLTokenizer, **fields: Any) -> Shape:
    """Kept to a grammar in Lark."""
    return _shape(LLMatcher.grammar_from_lark(text), tokens, fields)


def lost_shape(tokens: LLTokenizer) -> Shape:
    """One whose state is lost with the first mask; no schema that is let through makes such a one."""
    return _shape(LLMatcher.grammar_from_json_schema('{"$ref": "#"}'), tokens, {})


def _shape(grammar: str, tokens: LLTokenizer, fields: dict[str, Any]) -> Shape:
    compiled = LLMatcher(tokens, grammar, log_level=0, limits=parser_limits())
    assert not compiled.is_error(), compiled.get_error()
    return Shape(compiled=compiled, **fields)

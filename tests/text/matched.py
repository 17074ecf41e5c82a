"""Grammars of schemas for the bundled model's tokens, and whether they let a text through."""

from __future__ import annotations

from pathlib import Path

from llguidance import LLMatcher

from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.matcher import Matcher
from sparkle.text.schema_limits import SchemaLimits

TINY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
ROWS = 8192
END_TOKENS = (8161, 8159)
VOCABULARY = read_vocabulary(TINY, rows=ROWS, end_tokens=END_TOKENS)


def compiled(schema: object) -> LLMatcher:
    """Raises as `json_schema_grammar` does, AssertionError where the library refuses."""
    made = LLMatcher(
        VOCABULARY, json_schema_grammar(schema, SchemaLimits()), log_level=0, limits=parser_limits()
    )
    assert not made.is_error(), made.get_error()
    return made


def lets_through(grammar: LLMatcher, text: str) -> bool:
    """Token by token, and then the end."""
    tokens = [*VOCABULARY.tokenize_str(text), END_TOKENS[0]]
    return Matcher(grammar, rows=ROWS, end_tokens=END_TOKENS).count_allowed(tokens) == len(tokens)

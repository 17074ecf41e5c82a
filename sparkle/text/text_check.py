"""Whether a text has a schema's pattern or format, in time linear in the text. Knows no schema as a whole."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher, LLTokenizer

from sparkle.errors import GrammarError
from sparkle.text.grammar import json_schema_grammar, parser_limits
from sparkle.text.pattern_dialect import UNWRITABLE
from sparkle.text.schema_keywords import FORMATS
from sparkle.text.schema_limits import SchemaLimits


class TextCheck:
    """Patterns and formats, each compiled once."""

    def __init__(self) -> None:
        # a vocabulary in which every token is a byte
        self._bytes = LLTokenizer("byte")
        self._compiled: dict[tuple[str, str], LLMatcher | None] = {}

    def finds(self, pattern: str, text: str) -> bool:
        """Whether `pattern` is found in `text`.

        Where the grammar library cannot say, Python does, which may take for ever. Raises re.error for what
        neither can read.
        """
        grammar = self._grammar("pattern", pattern)
        if grammar is None or not UNWRITABLE.isdisjoint(text):
            return re.search(pattern, text) is not None
        return _accepts(grammar, text)

    def in_format(self, name: str, text: str) -> bool:
        """Whether `text` is in a format; any is in one that is not enforced."""
        grammar = self._grammar("format", name) if name in FORMATS else None
        return grammar is None or _accepts(grammar, text)

    def _grammar(self, keyword: str, given: str) -> LLMatcher | None:
        if (keyword, given) not in self._compiled:
            self._compiled[keyword, given] = self._compile({"type": "string", keyword: given})
        return self._compiled[keyword, given]

    def _compile(self, schema: dict[str, str]) -> LLMatcher | None:
        try:
            grammar = json_schema_grammar(schema, SchemaLimits())
        except GrammarError:
            return None
        matcher = LLMatcher(self._bytes, grammar, log_level=0, limits=parser_limits())
        return None if matcher.is_error() else matcher


def _accepts(grammar: LLMatcher, text: str) -> bool:
    matcher = grammar.deep_copy()
    written = list(json.dumps(text, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting()

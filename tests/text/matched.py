"""Grammars of schemas for the tokens of a vocabulary, and which texts they let through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from sparkle.errors import UnsupportedSchema
from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.grammar_process import judge
from sparkle.text.grammar_verdict import Verdict
from sparkle.text.matcher import Matcher
from sparkle.text.schema_limits import SchemaLimits


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens as the grammar library knows them."""

    tokens: LLTokenizer
    rows: int
    end_tokens: Sequence[int]

    @classmethod
    def read(cls, directory: Path, *, rows: int, end_tokens: Sequence[int]) -> Vocabulary:
        return cls(read_vocabulary(directory, rows=rows, end_tokens=end_tokens), rows, end_tokens)

    def compile(self, schema: object) -> LLMatcher:
        """As a job's schema goes, but for the other process. Raises GrammarError where it is refused."""
        grammar = json_schema_grammar(schema, SchemaLimits())
        if judge(self.tokens, grammar) is not Verdict.COMPILES:
            raise UnsupportedSchema("schema: refused in its trial; make it simpler")
        made = LLMatcher(self.tokens, grammar, log_level=0, limits=parser_limits())
        assert not made.is_error(), made.get_error()
        return made

    def matcher(self, grammar: LLMatcher) -> Matcher:
        return Matcher(grammar, rows=self.rows, end_tokens=self.end_tokens)

    def lets_through(self, grammar: LLMatcher, text: str) -> bool:
        """Token by token, and then the end."""
        tokens = [*self.tokens.tokenize_str(text), self.end_tokens[0]]
        return self.matcher(grammar).count_allowed(tokens) == len(tokens)


TINY = Vocabulary.read(
    Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny",
    rows=8192,
    end_tokens=(8161, 8159),
)


def compiled(schema: object) -> LLMatcher:
    return TINY.compile(schema)


def lets_through(grammar: LLMatcher, text: str) -> bool:
    return TINY.lets_through(grammar, text)

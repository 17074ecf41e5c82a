"""Compiles a grammar for use, after its trial in another process. Keeps none; see grammar_cache."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from sparkle.errors import UnsupportedSchema
from sparkle.text.grammar import parser_limits
from sparkle.text.grammar_trial import GrammarTrial


class GrammarCompiler:
    """Turns grammars into matchers at their beginning, which answers copy. Any thread may ask."""

    def __init__(self, vocabulary: LLTokenizer, trial: GrammarTrial) -> None:
        """`trial` has the same vocabulary. The threads that ask have stacks of 2 MB or more, as is usual."""
        self._vocabulary = vocabulary
        self._trial = trial

    def compile(self, grammar: str) -> LLMatcher:
        """Raises as `GrammarTrial.require_compiles` does."""
        self._trial.require_compiles(grammar)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise UnsupportedSchema("schema: compiled in its trial and not again; try it once more")
        return matcher

"""Whether it was one of its own limits that the grammar library stopped at. Knows no grammar."""

from __future__ import annotations

from llguidance import LLMatcher

_REASONS = ("ParserTooComplex", "LexerTooComplex")
# other limits it calls internal errors: they are known by their texts only, which may quote the grammar
_MARKS = ("too big", "too large", "too many", "level exceeded", "max is")


def is_over_limit(matcher: LLMatcher) -> bool:
    """Of a matcher in its error state."""
    text = matcher.get_error().lower()
    return matcher.stop_reason() in _REASONS or any(mark in text for mark in _MARKS)

"""The shape that one answer is kept to, ready for use. Knows no schema and no answer."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher

from sparkle.text.call_values import CallForms
from sparkle.text.known_ways import NOTHING_KNOWN, KnownWays


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A compiled grammar, and where in the answer it begins."""

    compiled: LLMatcher
    """At its beginning; never moved on: each answer copies it."""

    begins_after: int | None = None
    """The token that ends the thinking; None where the grammar begins with the answer's first token."""

    lead_in: tuple[int, ...] = ()
    """Tokens that stand between `begins_after` and the grammar, as the template writes them."""

    complete: bool = False
    """Whether the answer is closed with a short valid ending before its tokens run out."""

    known: KnownWays = NOTHING_KNOWN
    """What helps to find that ending."""

    exact: bool = True
    """Whether the grammar says all that the job asks for; not where the job is not strict."""

    calls: CallForms | None = None
    """How calls of tools are read; None where the answer has none."""

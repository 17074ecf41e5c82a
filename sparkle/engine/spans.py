"""A request's part of a pass: the next token of its answer, with a draft, or a chunk of what it has to read.

Knows no torch and no budget.
"""

from __future__ import annotations

from sparkle.engine.plan import MAX_DRAFT_TOKENS, Span
from sparkle.engine.request import Request


def draft_room(request: Request, most: int) -> int:
    """Tokens that its draft may have, at most `most`."""
    # a pass with a draft may write one token more than the draft has
    return min(most, MAX_DRAFT_TOKENS, request.max_answer_tokens - len(request.answer) - 1)


def decode_span(request: Request, draft: tuple[int, ...]) -> Span:
    """Read its last token and the draft behind it, and draw."""
    assert request.slot is not None
    return Span(
        request=request.id,
        slot=request.slot,
        start=request.computed,
        tokens=(request.answer[-1], *draft),
        pages=request.pages,
        draws=True,
        fresh=False,
        draft=draft,
    )


def reading_span(request: Request, stop: int) -> Span:
    """Read its tokens up to `stop`, and draw where that is the last of them."""
    assert request.slot is not None
    tokens = request.tokens
    return Span(
        request=request.id,
        slot=request.slot,
        start=request.computed,
        tokens=tokens[request.computed : stop],
        pages=request.pages,
        draws=stop == len(tokens),
        fresh=not request.placed,
        following=tokens[stop] if stop < len(tokens) else None,
    )

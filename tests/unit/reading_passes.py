"""Plans of passes that read, by where their spans begin and how long they are."""

from __future__ import annotations

from sparkle.engine.plan import PassPlan, Span


def reading(*chunks: tuple[int, int]) -> PassPlan:
    """Of (start, rows)."""
    return PassPlan(
        spans=tuple(
            Span(
                request=str(slot),
                slot=slot,
                start=start,
                tokens=(0,) * rows,
                pages=(),
                draws=False,
                fresh=not start,
            )
            for slot, (start, rows) in enumerate(chunks)
        )
    )

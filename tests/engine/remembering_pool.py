"""Slots and pages that remember tokens instead of numbers, and follow plans as the runners do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparkle.engine.plan import PassPlan, Span
from sparkle.engine.request import Request

BLANK = -1
State = tuple[str | None, tuple[int, ...]]
"""Whose tokens were read, and which."""
NEW: State = (None, ())


class RememberingPool:
    """What is in each slot and cell. Each read must find the request's own tokens, all of them."""

    def __init__(self, *, num_slots: int, num_pages: int, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self.states = [NEW] * num_slots
        self.cells = [[BLANK] * page_tokens for _ in range(num_pages)]

    def run(self, plan: PassPlan, requests: Mapping[str, Request], kept: Mapping[str, int]) -> None:
        """One pass; `kept` rows of each span stay in its state. Its rows are all written."""
        upkeep = plan.upkeep
        for slot in upkeep.wiped_slots:
            self.states[slot] = NEW
        for page in upkeep.wiped_pages:
            self.cells[page] = [BLANK] * self._page_tokens
        for source, target in upkeep.page_copies:
            assert self.cells[target] == [BLANK] * self._page_tokens, "the page was another's"
            self.cells[target] = list(self.cells[source])
        for source, target in upkeep.restored:
            assert self.states[target] == NEW, "the slot was another's"
            self.states[target] = self.states[source]
        for span in plan.spans:
            self._read(span, requests[span.request], kept[span.request])
        for source, target in upkeep.saved:
            assert self.states[target] == NEW, "the slot was another's"
            self.states[target] = self.states[source]

    def check_blank(self, slots: Collection[int], pages: Collection[int]) -> None:
        """Nothing is left in these."""
        assert all(self.states[slot] == NEW for slot in slots)
        assert all(self.cells[page] == [BLANK] * self._page_tokens for page in pages)

    def tokens_of(self, pages: Sequence[int], count: int) -> tuple[int, ...]:
        """The first `count` tokens in these pages."""
        return tuple(
            self.cells[pages[at // self._page_tokens]][at % self._page_tokens] for at in range(count)
        )

    def _read(self, span: Span, request: Request, kept: int) -> None:
        before = request.tokens[: span.start]
        if span.start:
            assert self.states[span.slot] == (request.tenant or "", before), "the state is of other tokens"
        else:
            assert self.states[span.slot] == NEW, "the state is not that of no tokens"
        assert self.tokens_of(span.pages, span.start) == before, "the pages are of other tokens"
        for number, token in enumerate(span.tokens):
            page, cell = divmod(span.start + number, self._page_tokens)
            self.cells[span.pages[page]][cell] = token
        self.states[span.slot] = (request.tenant or "", (*before, *span.tokens[:kept]))

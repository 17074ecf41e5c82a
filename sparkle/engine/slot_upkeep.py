"""Wipes, copies and names slots and pages as a plan says. Knows no request's tokens and no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from sparkle.engine.plan import PassPlan, Span
from sparkle.engine.transfer import to_device
from sparkle.engine.windows import Windows
from sparkle.model.cache import SequenceCache
from sparkle.model.fp8_cache import Fp8Cache


class SlotUpkeep:
    """Everything that a slot or a page has is wiped and copied together: whatever was left out would be a
    trace of an ended request, or a state that fits no tokens.
    """

    def __init__(
        self,
        cache: SequenceCache | Fp8Cache,
        slot_state: Callable[[int], Sequence[Tensor]] | None,
        *,
        max_pages: int,
        windows: Windows | None = None,
    ) -> None:
        """`slot_state` is the draft model's, see Helper; `windows` are the FP8 cache's."""
        self._cache = cache
        self._slot_state = slot_state
        self._windows = windows
        self.page_tables = torch.full(
            (cache.num_slots, max_pages), -1, dtype=torch.int32, device=cache.keys.device
        )
        """int32 [slots, max_pages], -1 behind a request's pages; written once a request."""

    def before(self, plan: PassPlan) -> None:
        """What is due before the pass."""
        upkeep = plan.upkeep
        self.wipe(upkeep.wiped_slots, upkeep.wiped_pages)
        for source, target in upkeep.page_copies:
            self._cache.copy_page(source, target)
        self._copy_slots(upkeep.restored)
        for span in plan.spans:
            if span.fresh:
                self.place(span)

    def after(self, plan: PassPlan) -> None:
        """What is due behind the pass."""
        self._copy_slots(plan.upkeep.saved)

    def place(self, span: Span) -> None:
        """Note the span's pages as those of its slot."""
        row = self.page_tables[span.slot]
        row.fill_(-1)
        row[: len(span.pages)] = to_device(span.pages, torch.int32, self.page_tables.device)

    def wipe(self, slots: Iterable[int], pages: Sequence[int]) -> None:
        """Zero all that these hold: a slot is then that of a sequence without tokens."""
        for slot in slots:
            self._cache.zero_slot(slot)
            for part in self._drafting(slot):
                part.zero_()
            if self._windows is not None:
                self._windows.empty(slot)
        if pages:
            self._cache.zero_pages(pages)

    def forget(self) -> None:
        """Zero what the draft model holds for nobody."""
        for part in self._drafting(self._cache.num_slots):
            part.zero_()

    def _copy_slots(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._cache.copy_slot(source, target)
            for own, other in zip(self._drafting(target), self._drafting(source), strict=True):
                own.copy_(other)
            if self._windows is not None:
                self._windows.copy(source, target)

    def _drafting(self, slot: int) -> Sequence[Tensor]:
        return () if self._slot_state is None else self._slot_state(slot)

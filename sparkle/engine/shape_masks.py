"""The masks of the rows that a pass draws behind, made on the host and brought to the logits' device.

Knows no logits and no model. Masks stand in one buffer on each side, whose first row is that of answers which
have not begun: it allows all but the model's end tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.shaped_answer import Allowed, ShapedAnswer
from sparkle.engine.transfer import to_device
from sparkle.errors import GrammarError
from sparkle.text.mask_filler import DraftMasks, MaskFiller, words_of

NO_MASK = -1
"""Of a row that any token may be drawn behind, or none counts that is."""
_FREE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMasks:
    """The masks of some rows, on their device or on the way there."""

    masks: Tensor
    """int32 [M, words]."""

    rows: Sequence[int]
    """Of each row that is drawn behind its mask, NO_MASK for none."""

    ready: Any
    """Of a GPU the event behind their copy; None elsewhere."""

    def of(self, places: Sequence[int]) -> RowMasks:
        """Those of some of the rows, by their places in `rows`; NO_MASK is a row without one."""
        return replace(self, rows=[NO_MASK if place == NO_MASK else self.rows[place] for place in places])

    def wait(self) -> Tensor:
        """`rows`, int64 [R], on the device. What is started there from here on finds rows and masks; the host
        does not wait.
        """
        which = to_device(self.rows, torch.int64, self.masks.device)
        if self.ready is not None:
            torch.cuda.current_stream().wait_event(self.ready)
        return which


class ShapeMasks:
    """Owns the buffers and the threads that fill them. What it gave is lost with the next call."""

    def __init__(
        self,
        *,
        rows: int,
        end_tokens: Sequence[int],
        most_masks: int,
        threads: int,
        device: torch.device,
    ) -> None:
        """`rows`, `end_tokens`: the vocabulary's; `most_masks`: rows that a pass draws behind at most."""
        self._words = words_of(rows)
        self._filler = MaskFiller(rows=rows, threads=threads)
        on_gpu = device.type == "cuda"
        shape = 1 + most_masks, self._words
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self._on_device = torch.zeros(shape, dtype=torch.int32, device=device) if on_gpu else self._host
        # torch has no types for either
        self._aside: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._copied: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        memory = (ctypes.c_char * self._host.nbytes).from_address(self._host.data_ptr())
        self._octets = memoryview(memory).cast("B")
        self._view = self._octets.cast("i", shape)
        self._write_free(end_tokens)

    @property
    def bytes(self) -> int:
        """Of the buffer on one side."""
        return self._host.nbytes

    def fill(self, states: Sequence[DrawState], drafts: Sequence[Sequence[int]]) -> RowMasks | None:
        """The masks of the rows that these draw behind, a state's after the other's; None where none has a
        shape.

        `drafts`: of each its draft, () for none. They mean nothing where the grammar's state is lost.
        """
        if all(state.shape is None for state in states):
            return None
        rows, wanted = list[int](), list[DraftMasks]()
        used = 1
        for state, draft in zip(states, drafts, strict=True):
            own = list[int]()
            allowed = None if state.shape is None else _allowed(state.shape, draft)
            if state.shape is not None and allowed is not None:
                for row, token in enumerate(allowed.given, used):
                    self._write_one(row, token)
                used, first = used + len(allowed.given), used
                if allowed.grammar is not None:
                    wanted.append(DraftMasks(state.shape.matcher, used, allowed.grammar))
                    used += 1 + len(allowed.grammar)
                own = [*[_FREE] * allowed.free, *range(first, used)]
            rows += [*own, *[NO_MASK] * (1 + len(draft) - len(own))]
        # which ones are lost is told when their tokens are accepted
        self._filler.fill(wanted, self._view)
        brought = self._brought(used, rows)
        for one in wanted:
            # while the device computes: when it has drawn there is no time to lose
            one.matcher.expect(one.draft)
        return brought

    def forget(self) -> None:
        """Overwrite every mask on both sides but that of answers which have not begun."""
        self._host[1:].zero_()
        self._on_device[1:].zero_()

    def _brought(self, used: int, rows: Sequence[int]) -> RowMasks:
        if self._aside is not None:
            # beside what the device is computing, which has no use for them yet
            with torch.cuda.stream(self._aside):
                self._on_device[1:used].copy_(self._host[1:used], non_blocking=True)
                self._copied.record()
        return RowMasks(masks=self._on_device, rows=rows, ready=self._copied)

    def _write_one(self, row: int, token: int) -> None:
        """Allow a single token."""
        start = row * 4 * self._words
        self._octets[start : start + 4 * self._words] = bytes(4 * self._words)
        self._octets[start + token // 8] = 1 << token % 8

    def _write_free(self, end_tokens: Sequence[int]) -> None:
        self._octets[: 4 * self._words] = b"\xff" * (4 * self._words)
        for token in end_tokens:
            self._octets[token // 8] &= ~(1 << token % 8) & 0xFF
        if self._aside is not None:
            self._on_device[:1].copy_(self._host[:1])


def _allowed(answer: ShapedAnswer, draft: Sequence[int]) -> Allowed | None:
    try:
        return answer.allowed(draft)
    except GrammarError:
        return None

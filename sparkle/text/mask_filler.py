"""Writes what is allowed behind each token of several answers' drafts, a bit a token. Knows no device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLExecutor, LLMatcher

from sparkle.errors import ConfigError
from sparkle.text.matcher import Matcher

WORD_BITS = 32


def words_of(rows: int) -> int:
    """int32 words of one mask over a vocabulary of `rows`; 7,760 for 248,320."""
    return -(-rows // WORD_BITS)


@dataclass(frozen=True, slots=True)
class DraftMasks:
    """Masks of one answer: at `first_row` what may follow now, then behind each token of `draft`."""

    matcher: Matcher
    first_row: int
    draft: Sequence[int]
    """Cut to what `Matcher.count_allowed` says. Behind an end token nothing is drawn, and no mask written."""


class MaskFiller:
    """The threads that compute masks. They hold no lock of Python: others run meanwhile."""

    def __init__(self, *, rows: int, threads: int) -> None:
        """`rows`: of the vocabulary; `threads`: how many compute at once."""
        if threads < 1:
            raise ConfigError(f"threads is {threads} but must be at least 1")
        self._words = words_of(rows)
        self._mask_bytes = self._words * WORD_BITS // 8
        self._executor = LLExecutor(threads)

    def fill(self, wanted: Sequence[DraftMasks], masks: memoryview) -> list[int]:
        """Write into `masks`, int32 [rows, words], contiguous: bit t % 32 of word t // 32 is token t.

        Returns the places in `wanted` whose matcher has failed: their rows mean nothing, their answers must
        fail. Raises MatcherFailed for a draft that is not cut, ConfigError where `masks` is of another form
        or has too few rows.
        """
        work = [
            (*one.matcher.with_masks_of(one.draft), one.first_row) for one in wanted if not one.matcher.failed
        ]
        self._require_room(masks, max((first + len(draft) for _, draft, first in work), default=-1))
        if work:
            self._compute(work, masks)
        return [place for place, one in enumerate(wanted) if one.matcher.failed]

    def _compute(self, work: Sequence[tuple[LLMatcher, list[int], int]], masks: memoryview) -> None:
        start = ctypes.addressof((ctypes.c_char * masks.nbytes).from_buffer(masks))
        room = self._mask_bytes, masks.nbytes // self._mask_bytes
        # the library has one call for each: it refuses an empty draft
        drafts = [(state, first, draft) for state, draft, first in work if draft]
        if drafts:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafts, start, *room)
        single = [(state, first) for state, draft, first in work if not draft]
        if single:
            self._executor.unsafe_compute_mask_ptr(single, start, *room)

    def _require_room(self, masks: memoryview, last_row: int) -> None:
        shape = masks.shape or ()
        held = masks.format, len(shape), shape[-1:], masks.c_contiguous, masks.readonly
        if held != ("i", 2, (self._words,), True, False):
            raise ConfigError(
                f"masks must be writable int32 with {self._words} words in each row, contiguous"
            )
        rows = masks.nbytes // self._mask_bytes
        if last_row >= rows:
            raise ConfigError(f"masks have {rows} rows but {last_row + 1} are wanted")

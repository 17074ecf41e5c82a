"""What a draft model offers that guesses during a pass, from what the target's layers put out.

Knows neither model nor requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from sparkle.model.dflash_selector import Draws

Check = TypeVar("Check", contravariant=True)
"""A pass that checks drafts."""
Pass = TypeVar("Pass", contravariant=True)
"""Any pass."""


class Helper(Protocol[Check, Pass]):
    """Keeps a context of each slot's sequence, which must take part in every pass, whoever drafts for it.

    Its guesses never decide a token: what it keeps may be lost at any time, and only costs accepted tokens.
    """

    @property
    def name(self) -> str:
        """As metrics call it."""
        ...

    def slot_state(self, slot: int) -> Sequence[Tensor]:
        """Views of all that is kept of the slot's sequence, besides its pages.

        Zeroed they are those of a sequence with no tokens, as is due before each new one on the slot; a copy
        of them belongs to a checkpoint of the sequence, which then goes on with as good a draft. The slot
        behind the last one takes the rows that nobody keeps.
        """
        ...

    def propose(self, batch: Check, *, count: int, draws: Draws | None) -> Tensor:
        """`count` guesses behind the first row of each span: int64 [S, count]; of an unused place anything.

        `batch` is the pass that will check them: of its tokens each span's first is read alone. `draws` for
        `count` tokens, see Draws; None for the likeliest.
        """
        ...

    def follow(
        self, batch: Pass, outputs: Tensor, following: Tensor, *, contexts: Tensor, kept: Tensor
    ) -> None:
        """Take the kept rows of a pass into the contexts of their slots.

        `outputs` [T, ...] came with the pass; following int64 [T], the token behind each row, which only
        matters of the kept ones; contexts int64 [S], tokens kept before; kept int64 [S], of each span the
        first so many rows. Where none is kept nothing is taken, and a second call may bring what was missing.
        """
        ...

"""An allowance: it comes with the passes that are run, and what is risked or tried is paid from it."""

from __future__ import annotations


class Budget:
    """A share of all passes, in passes without drafts; what is not spent is saved up to a limit.

    Over any stretch of n passes less than share · n + saved + one payment is spent.
    """

    def __init__(self, share: float, *, saved: float) -> None:
        """Of each pass comes a share of it; `saved`: what there is at most, and to begin with."""
        self._share = share
        self._most = saved
        self._left = saved

    def earn(self, passes: float) -> None:
        """What ran, as long as so many passes without drafts."""
        self._left = min(self._left + self._share * passes, self._most)

    def pays_for(self, price: float) -> bool:
        """Whether so much may be spent: nothing always, more than can be saved where all that can be is."""
        return price <= 0 or self._left >= min(price, self._most)

    def spend(self, price: float) -> None:
        """Pay; a price below 0 is a gain."""
        self._left = min(self._left - price, self._most)

"""Which worker a conversation's last answer is from: its home. Pure: the caller tells the time."""

from __future__ import annotations

from collections import OrderedDict

MAX_CONVERSATIONS = 10_000
"""Conversations that are remembered, some 200 bytes each; of more, the longest unanswered is forgotten."""


class Homes:
    """The homes of conversations, each of one tenant: ids and times only."""

    def __init__(self, keep_s: float, *, max_conversations: int = MAX_CONVERSATIONS) -> None:
        """A home counts for `keep_s` after its answer."""
        self._keep_s = keep_s
        self._max_conversations = max_conversations
        # whichever was answered longest ago stands first
        self._last: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def answered(self, tenant: str, conversation: str | None, worker: str, *, now_s: float) -> None:
        """`worker` began or ended an answer of this conversation; None is a job of no conversation."""
        if conversation is None:
            return
        self._last[tenant, conversation] = (now_s, worker)
        self._last.move_to_end((tenant, conversation))
        self._forget(now_s)

    def of(self, tenant: str, conversation: str | None, *, now_s: float) -> str | None:
        """The worker to ask first, or None."""
        self._forget(now_s)
        known = self._last.get((tenant, conversation)) if conversation is not None else None
        return None if known is None else known[1]

    def ended(self, tenant: str, conversation: str) -> None:
        """It does not go on: no worker is to be asked for it. Unknown ones are fine."""
        self._last.pop((tenant, conversation), None)

    def _forget(self, now_s: float) -> None:
        """Let go of what was answered too long ago, and of what is too many."""
        while self._last:
            answered_s, _ = next(iter(self._last.values()))
            if now_s - answered_s <= self._keep_s and len(self._last) <= self._max_conversations:
                break
            self._last.popitem(last=False)

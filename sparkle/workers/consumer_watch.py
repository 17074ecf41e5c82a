"""Whether somebody still waits for an answer: its producer is asked now and then. Knows no engine, no lease.

An answer to the question is what keeps a job alive. As long as there is none, what is written is stored
every two seconds, for the worker that may have to go on with it; after a while nobody is taken to be there.
Time in which this worker itself is cut off from the queue does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sparkle.errors import NotConnected
from sparkle.schemas.answered import Answered

ASK_S = 10.0
"""How often one that is there is asked, at most."""
STORE_S = 2.0
"""How often one that is not, and how often it is stored what it misses."""
_ASKED_BEFORE_GONE = 4


class Records(Protocol):
    """Where producers are asked, and answers stored: `queue.answered.AnswerRecords`."""

    async def ask(self, tenant: str, job: str, from_index: int) -> Answered | None:
        """The producer's tokens from this one on; None where nobody answers. Raises NotConnected."""
        ...

    async def store(self, tenant: str, answered: Answered) -> None:
        """Keep it for the worker that goes on."""
        ...


class ConsumerWatch:
    """Watches over one job that is being answered."""

    def __init__(
        self,
        records: Records,
        tenant: str,
        record: Callable[[], Answered],
        on_gone: Callable[[], None],
        *,
        away_s: float,
        detached: bool,
    ) -> None:
        """`record`: what is written now; `on_gone`: nobody was there for `away_s`, and one is needed."""
        self._records = records
        self._tenant = tenant
        self._record = record
        self._on_gone = on_gone
        self._away_s = away_s
        self._detached = detached
        self._ask_s = min(ASK_S, away_s / _ASKED_BEFORE_GONE)
        self._away_since_s: float | None = None
        self._stored_tokens = 0

    @property
    def is_away(self) -> bool:
        """Whether nobody answered the last question."""
        return self._away_since_s is not None

    async def run(self) -> None:
        """Until cancelled, or `on_gone` was called."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(STORE_S, self._ask_s) if self.is_away else self._ask_s)
            record = self._record()
            try:
                answer = await self._records.ask(self._tenant, record.job, len(record.tokens))
            except NotConnected:
                self._away_since_s = None
                continue
            if answer is not None:
                self._away_since_s = None
                continue
            if self._away_since_s is None:
                self._away_since_s = loop.time()
            if not self._detached and loop.time() - self._away_since_s >= self._away_s:
                self._on_gone()
                return
            await self._store()

    async def _store(self) -> None:
        record = self._record()
        if len(record.tokens) > self._stored_tokens:
            self._stored_tokens = len(record.tokens)
            await self._records.store(self._tenant, record)

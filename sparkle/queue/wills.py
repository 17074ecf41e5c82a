"""Who hands a dead worker's jobs on, long before the queue would: another worker, its heir. Knows no job.

A lease is no more than knowing where a message's fate is told. So each worker tells one other one, twice a
second, where that is for all that it holds: its will. The answer says that the heir lives, the will that its
maker does. When no more wills come the heir asks; where nobody listens any more, as after a kill or with a
machine that is gone, or where nobody answers for long, it hands the messages back to the queue, and they are
delivered anew at once.

    maker ── Will ──▶ heir     twice a second, and when a lease was taken
    maker ◀── yes ─── heir     none: the maker looks for another one
    maker ◀── empty ── heir    no will came: is it there? It answers which process it is

There is one heir at a time, so that nothing is handed back twice. Should it be wrong, and the maker alive,
two workers write the same answer: its consumer follows the later one, and the first end stored stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sparkle.errors import InvalidMessage, NotConnected, PublishUncertain, QueueError, TopologyMissing
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.lease import nak_body
from sparkle.queue.waiting import until
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Will

log = logging.getLogger(__name__)

WILL_S = 0.5
"""How often a will is told."""
CHECK_S = 0.25
"""How often an heir looks whether wills still come."""
_LATE_CHECKS = 3
_GONE_CHECKS = 3
_SILENT_CHECKS = 24
"""Of a worker whose connection stands and who says nothing: it may only be busy."""
_ANSWER_S = 0.5


class WillMaker:
    """The will of one worker."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        worker: str,
        process: str,
        *,
        leases: Callable[[], list[str]],
        peers: Callable[[], list[str]],
    ) -> None:
        """`process`: 16 hex digits of its own; `leases`: where the fates of the jobs held now are told.

        `peers`: who can be the heir, by name.
        """
        self._connection = connection
        self._region = region
        self._worker = worker
        self._process = process
        self._leases = leases
        self._peers = peers
        self._heir: str | None = None
        self._told: str | None = None
        self._refused: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def heir(self) -> str | None:
        """Who has the will; None where nobody is there to have it."""
        return self._heir

    def changed(self) -> None:
        """A lease was taken: tell the heir now."""
        self._changed.set()

    async def run(self) -> None:
        """Tell it again and again, until cancelled; then there is none any more."""
        try:
            while True:
                self._changed.clear()
                await self._tell(self._leases())
                await until(self._changed, WILL_S)
        finally:
            if self._heir is not None and self._connection.is_up:
                await self._connection.publish(self._subject(self._heir), self._will([]))

    async def _tell(self, leases: list[str]) -> None:
        self._heir = self._choose()
        if self._heir is None:
            return
        try:
            await self._connection.request(self._subject(self._heir), self._will(leases), timeout_s=_ANSWER_S)
        except (TopologyMissing, PublishUncertain):
            self._refused.add(self._heir)
            self._heir = None
            # to another one, if there is one, at once
            self._changed.set()
        except NotConnected:
            return
        if self._heir not in (None, self._told):
            log.info("heir_found", extra={"heir": self._heir})
        self._told = self._heir

    def _choose(self) -> str | None:
        """The one that it was, or the next one in a ring of all names: so each is the heir of few."""
        there = [peer for peer in self._peers() if peer != self._worker]
        self._refused &= {*there}
        willing = sorted(peer for peer in there if peer not in self._refused)
        if self._heir in willing:
            return self._heir
        if not willing:
            # those that did not answer are asked again
            self._refused.clear()
        return next((peer for peer in willing if peer > self._worker), next(iter(willing), None))

    def _subject(self, heir: str) -> str:
        return subjects.will(self._region, heir)

    def _will(self, leases: list[str]) -> bytes:
        return encode(Will(worker=self._worker, process=self._process, leases=leases))


@dataclass(slots=True)
class _Kept:
    """One worker's will, and what is known of its maker."""

    process: str
    leases: list[str]
    generation: int
    late: int = 0
    gone: int = 0
    silent: int = 0


class Heir:
    """The wills that one worker keeps for others."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        worker: str,
        process: str,
        *,
        on_handed_on: Callable[[int], None],
    ) -> None:
        """`process`: as its own will has it; `on_handed_on` is told how many jobs of a dead worker go on."""
        self.process = process
        self._connection = connection
        self._region = region
        self._subject = subjects.will(region, worker)
        self._on_handed_on = on_handed_on
        self._wills: dict[str, _Kept] = {}
        self._subscription: Subscription | None = None

    @property
    def makers(self) -> list[str]:
        """Whose wills are kept."""
        return list(self._wills)

    async def start(self) -> None:
        """Take wills from now on. Raises NotConnected."""
        self._subscription = await self._connection.subscribe(self._subject, self._take)

    async def stop(self) -> None:
        """Take no more: their makers find other heirs."""
        if self._subscription is not None:
            await self._subscription.stop()
            self._subscription = None
        self._wills.clear()

    async def run(self) -> None:
        """Look whether they still come, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            for maker, kept in list(self._wills.items()):
                if self._wills.get(maker) is not kept:
                    continue
                # a queue that was away may be another one, where these messages are other jobs
                if kept.generation != self._connection.generation:
                    del self._wills[maker]
                    continue
                kept.late += 1
                # checks are counted, not seconds: after a stop of this process itself a single one is due
                if kept.late >= _LATE_CHECKS and await self._is_dead(maker, kept):
                    del self._wills[maker]
                    await self._hand_on(maker, kept.leases)

    async def _take(self, envelope: Envelope) -> None:
        if envelope.payload:
            will = decode(envelope.payload, Will)
            if not will.leases:
                self._wills.pop(will.worker, None)
            else:
                self._wills[will.worker] = _Kept(will.process, will.leases, self._connection.generation)
        if envelope.reply:
            await self._connection.publish(envelope.reply, self.process.encode())
        elif not envelope.payload:
            raise InvalidMessage("reply: missing; a question says where its answer goes")

    async def _is_dead(self, maker: str, kept: _Kept) -> bool:
        """Ask it; whether it has been away for long enough."""
        try:
            answer = await self._connection.request(subjects.will(self._region, maker), timeout_s=_ANSWER_S)
        except TopologyMissing:
            kept.gone += 1
        except PublishUncertain:
            kept.gone = 0
            kept.silent += 2
        except NotConnected:
            return False
        else:
            if answer.payload != kept.process.encode():
                return self._wills.get(maker) is kept
            # it lives: if this one is its heir still, its will comes again
            if self._wills.get(maker) is kept:
                del self._wills[maker]
            return False
        # a will may have come meanwhile, or another queue
        is_last = self._wills.get(maker) is kept and kept.generation == self._connection.generation
        return is_last and (kept.gone >= _GONE_CHECKS or kept.silent >= _SILENT_CHECKS)

    async def _hand_on(self, maker: str, leases: list[str]) -> None:
        log.warning("worker_lost", extra={"lost": maker, "jobs": len(leases)})
        self._on_handed_on(len(leases))
        told = await asyncio.gather(*map(self._nak, leases), return_exceptions=True)
        failed = sum(isinstance(one, QueueError) for one in told)
        if failed:
            # the queue finds out by itself, later
            log.warning("lost_jobs_uncertain", extra={"lost": maker, "jobs": failed})

    async def _nak(self, ack_subject: str) -> None:
        await self._connection.request(ack_subject, nak_body(0.0))

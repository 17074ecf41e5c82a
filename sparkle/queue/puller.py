"""Gets jobs for free slots, and only for those. Knows no engine: it asks how many slots are free.

The rule, measured in facts/nats.md 1.4:
1. With a slot free, ask the classes that may have work one after the other, without waiting (`sweep`).
2. Nothing there and at least one slot a class free: leave one short waiting request at each class (`arm`).
3. Fewer slots free: ask again when the bell rings for a class, and every `tick_s`.
4. A job that comes without a free slot (from a waiting request left over when the slots filled up) goes back
   at once. It comes again after `surplus_delay_s`, when no such request is left anywhere: a job handed back
   often would look like one that kills its workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sparkle.errors import ConfigError, NotConnected, TopologyMissing
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import nak_body
from sparkle.queue.pull import HEALTHY, Pull, PullEnd, read_status
from sparkle.queue.sweep import SweepOrder
from sparkle.schemas import subjects
from sparkle.schemas.priority import PriorityClass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How a worker asks for jobs."""

    poll_s: float = 1.0
    """How long a waiting request waits."""

    tick_s: float = 0.25
    """How often to ask when no bell rings; each time drawn anew by half."""

    answer_timeout_s: float = 2.0
    """How long an answer may take before the request counts as lost."""

    surplus_delay_s: float = 0.5
    """When a job that came without a free slot may come again."""

    max_backoff_s: float = 2.0
    """Longest wait between two tries while the queue is broken."""

    missing_grace_s: float = 30.0
    """How long a consumer may be missing before `run` gives up."""

    share_every: int = 8
    """Every so many jobs, the longest unserved class goes first."""

    def __post_init__(self) -> None:
        for name in ("poll_s", "tick_s", "answer_timeout_s", "surplus_delay_s", "max_backoff_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)} but must be above 0")


class Puller:
    """Hands jobs of one region to `deliver`, never more than `free_slots()` at a time."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        free_slots: Callable[[], int],
        deliver: Callable[[Delivery], Awaitable[None]],
        settings: PullSettings | None = None,
    ) -> None:
        """`deliver` takes a slot before it first awaits, returns soon, and leaves the work to a task."""
        self.surplus = 0
        """Jobs handed back because no slot was free."""
        self._connection = connection
        self._region = region
        self._free_slots = free_slots
        self._deliver = deliver
        self._settings = settings or PullSettings()
        self._order = SweepOrder(self._settings.share_every)
        self._maybe = set(PriorityClass)
        self._pulls: dict[PriorityClass, Pull] = {}
        self._inbox = ""
        self._asked = 0
        self._subscriptions: list[Subscription] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self._stale = True
        self._failures = 0
        self._missing_since: dict[PriorityClass, float] = {}
        connection.on_reconnect(self._reconnected)

    async def run(self) -> None:
        """Until `stop`. Raises TopologyMissing when a consumer is missing for `missing_grace_s`, and
        NotConnected when the connection has ended for good."""
        try:
            while not self._stopping:
                self._wake.clear()
                await self._step()
            await self._settle()
        finally:
            await self._unsubscribe()

    def wake(self) -> None:
        """A slot has become free."""
        self._wake.set()

    def stop(self) -> None:
        """Ask for nothing more; `run` returns once no job can come any more."""
        self._stopping = True
        self._wake.set()

    async def _step(self) -> None:
        if self._connection.closed.is_set():
            raise NotConnected("the connection is closed; no job can come")
        if not self._connection.is_up:
            await self._pause(self._settings.tick_s)
        elif self._stale:
            await self._listen()
        elif not await self._sweep():
            await self._rest()

    async def _sweep(self) -> bool:
        """Ask each class that may have work; whether a job came, so that the next turn is due."""
        turn = self._order.next_turn()
        for priority in turn.classes:
            batch = min(self._free_slots(), turn.most)
            if batch <= 0 or self._stopping or self._stale:
                return False
            if priority not in self._maybe or priority in self._pulls:
                continue
            pull = await self._ask(priority, batch)
            end = await pull.ended
            self._judge(priority, end)
            if pull.got:
                return True
            if end is PullEnd.LOST:
                return False
        return False

    async def _rest(self) -> None:
        """Nothing to do now: wait for a bell, a free slot or the tick; longer each time while broken."""
        if self._failures:
            backoff_s = min(self._settings.max_backoff_s, 0.05 * 2 ** min(self._failures, 10))
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            return
        # each waiting request must find a slot, whichever of them are filled
        if not self._maybe and self._free_slots() >= len(PriorityClass):
            for priority in PriorityClass:
                if priority not in self._pulls:
                    await self._ask(priority, 1, expires_s=self._settings.poll_s)
        if not await self._pause(self._settings.tick_s * random.uniform(0.5, 1.5)):
            # no bell rings for a job that was handed back, and a bell can be lost
            self._maybe.update(PriorityClass)

    async def _pause(self, seconds: float) -> bool:
        """Wait to be woken; False when the time is over first."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, priority: PriorityClass, batch: int, *, expires_s: float = 0.0) -> Pull:
        self._asked += 1
        pull = Pull(priority, f"{self._inbox}.{self._asked}", batch, expires_s)
        self._pulls[priority] = pull
        late = asyncio.get_running_loop().call_later(
            expires_s + self._settings.answer_timeout_s, pull.end, PullEnd.LOST
        )

        def close(ended: asyncio.Future[PullEnd]) -> None:
            late.cancel()
            if self._pulls.get(priority) is pull:
                del self._pulls[priority]
            if not ended.cancelled() and ended.result() is not PullEnd.EMPTY:
                self._maybe.add(priority)
            self._wake.set()

        pull.ended.add_done_callback(close)
        consumer = subjects.consumer(self._region, priority)
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{subjects.JOBS_STREAM}.{consumer}", pull.body(), reply=pull.inbox
        )
        return pull

    def _judge(self, priority: PriorityClass, end: PullEnd) -> None:
        """Remember what a class's answer says of its work and of the queue's health."""
        if end is PullEnd.EMPTY:
            self._maybe.discard(priority)
            self._order.empty(priority)
        if end in HEALTHY:
            self._missing_since.pop(priority, None)
            if self._failures:
                log.info("pull_recovered", extra={"region": self._region, "failures": self._failures})
                self._failures = 0
            return
        if not self._failures:
            log.warning("pull_broken", extra={"region": self._region, "class": priority, "end": end})
        self._failures += 1
        if end is PullEnd.MISSING:
            now_s = time.monotonic()
            missing_s = now_s - self._missing_since.setdefault(priority, now_s)
            if missing_s >= self._settings.missing_grace_s:
                raise TopologyMissing(
                    f"consumer {subjects.consumer(self._region, priority)} is missing for {missing_s:.0f} s; "
                    "run `sparkle topology apply`"
                )

    async def _take(self, envelope: Envelope) -> None:
        """A job, or a status line to one of our requests."""
        if envelope.subject.startswith(self._inbox):
            end = read_status(envelope)
            for pull in tuple(self._pulls.values()):
                if end is not None and pull.inbox == envelope.subject:
                    pull.end(end)
            return
        delivery = Delivery.read(envelope)
        priority = PriorityClass(delivery.subject.split(".")[2])
        try:
            await self._hand_over(delivery, priority)
        finally:
            if priority in self._pulls:
                self._pulls[priority].take()
            self._wake.set()

    async def _hand_over(self, delivery: Delivery, priority: PriorityClass) -> None:
        if self._stopping:
            await self._connection.publish(delivery.ack_subject, nak_body(0.0))
        elif self._free_slots() <= 0:
            self.surplus += 1
            log.info("pull_surplus", extra={"region": self._region, "class": priority})
            await self._connection.publish(delivery.ack_subject, nak_body(self._settings.surplus_delay_s))
        else:
            waited_s = max(0.0, time.time() - delivery.stored_s)
            self._order.pulled(priority, waited_s=waited_s, pending=delivery.pending)
            await self._deliver(delivery)

    async def _bell(self, envelope: Envelope) -> None:
        """A job of some class was stored."""
        self._maybe.add(PriorityClass(envelope.subject.rpartition(".")[2]))
        if self._free_slots() > 0:
            self._wake.set()

    def _reconnected(self) -> None:
        # what the old connection asked for may still be answered: a new inbox keeps it apart
        self._stale = True
        self._wake.set()

    async def _listen(self) -> None:
        """Hear jobs, statuses and bells; forget all requests of an earlier connection."""
        await self._unsubscribe()
        for pull in tuple(self._pulls.values()):
            pull.end(PullEnd.MOVED)
        self._pulls.clear()
        self._maybe.update(PriorityClass)
        self._stale = False
        self._inbox = self._connection.new_inbox()
        self._subscriptions = [
            await self._connection.subscribe(f"{self._inbox}.*", self._take),
            await self._connection.subscribe(subjects.bell(self._region), self._bell),
        ]

    async def _settle(self) -> None:
        """Wait for the end of the waiting requests; what comes meanwhile goes back at once."""
        waiting = [pull.ended for pull in self._pulls.values()]
        if waiting and self._connection.is_up:
            await asyncio.wait(waiting)

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

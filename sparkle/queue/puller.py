"""Gets jobs that there is room for, and only those. Knows no engine: it asks how many slots are free.

The rule:
1. With a slot free, ask the classes that may have work one after the other, without waiting (`sweep`).
2. Nothing there and at least one slot a class free: leave one short waiting request at each class (`arm`).
3. Fewer slots free: ask again when the bell rings for a class, and every `tick_s`. A bell can be heard before
   the consumer knows of the job: where nothing is found, ask once more after `second_look_s`.
4. A job that comes without a free slot (from a waiting request left over when the slots filled up) goes back
   at once. It comes again after `surplus_delay_s`, when no such request is left anywhere: a job handed back
   often would look like one that kills its workers.
5. Where no slot is free, jobs of a class for which others give way (`on_top`) are asked for every `tick_s`,
   and not when the bell rings: a worker with a free slot is sooner there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sparkle.config import require_positive
from sparkle.errors import NotConnected, TopologyMissing
from sparkle.queue.api import is_consumer_gone
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.delivery import Delivery
from sparkle.queue.desk import Desk
from sparkle.queue.lease import nak_body
from sparkle.queue.pull import HEALTHY, Pull, PullEnd, read_status
from sparkle.queue.sweep import SweepOrder
from sparkle.queue.waiting import until
from sparkle.schemas import subjects
from sparkle.schemas.priority import PriorityClass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How a worker asks for jobs."""

    poll_s: float = 1.0
    """How long a waiting request waits."""

    tick_s: float = 0.25
    """How often to ask classes for which no bell rang; drawn anew each time, up to half less or more."""

    second_look_s: float = 0.05
    """When a class is asked again that was empty although its bell had rung."""

    answer_timeout_s: float = 2.0
    """How long an answer may take before the request counts as lost."""

    surplus_delay_s: float = 0.5
    """When a job that came without a free slot may come again."""

    max_backoff_s: float = 2.0
    """Longest wait between two tries while the queue is broken."""

    missing_grace_s: float = 30.0
    """How long a consumer may be missing before the server is asked whether there is one."""

    share_every: int = 8
    """Every so many jobs, the longest unserved class goes first."""

    def __post_init__(self) -> None:
        names = "poll_s tick_s second_look_s answer_timeout_s surplus_delay_s max_backoff_s missing_grace_s"
        require_positive(self, *names.split())


def nothing_on_top(_priority: PriorityClass) -> int:
    """Nobody gives way."""
    return 0


class Puller:
    """Hands jobs of one region to `deliver`, never more at a time than there is room for."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        free_slots: Callable[[], int],
        deliver: Callable[[Delivery], Awaitable[None]],
        settings: PullSettings | None = None,
        *,
        on_top: Callable[[PriorityClass], int] = nothing_on_top,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` takes a slot before it first awaits, returns soon, and leaves the work to a task.

        `on_top`: jobs of a class that there is room for where no slot is free. `on_answer` is told when
        `asked` may have become less.
        """
        self.surplus = 0
        """Jobs handed back because no slot was free."""
        self._connection = connection
        self._region = region
        self._free_slots = free_slots
        self._on_top = on_top
        self._deliver = deliver
        self._on_answer = on_answer
        self._settings = settings or PullSettings()
        self._order = SweepOrder(self._settings.share_every)
        self._desks = {priority: Desk() for priority in PriorityClass}
        self._inbox = ""
        self._asked = 0
        self._subscriptions: list[Subscription] = []
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stale = True
        self._tick_at_s = 0.0
        connection.on_reconnect(self._reconnected)

    async def run(self) -> None:
        """Until `stop`; cancelled instead, jobs on their way here come again only after their `ack_wait`.

        Raises TopologyMissing when a consumer is missing for `missing_grace_s` and the server says that there
        is none, NotConnected when the connection has ended for good.
        """
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                await self._step()
            await self._settle()
        finally:
            await self._unsubscribe()

    @property
    def asked(self) -> int:
        """Jobs that the sweep's request may still bring: whoever else fills slots leaves one for each.

        Waiting requests do not count: they seldom bring anything, and would hold up every slot of a few.
        """
        pulls = (desk.pull for desk in self._desks.values() if desk.pull is not None)
        return sum(pull.batch - pull.got for pull in pulls if not pull.expires_s)

    def wake(self) -> None:
        """A slot has become free."""
        self._wake.set()

    def stop(self) -> None:
        """Ask for nothing more; `run` returns once no job can come any more."""
        self._stopping.set()
        self._wake.set()

    async def _step(self) -> None:
        if self._connection.closed.is_set():
            raise NotConnected("the connection is closed; no job can come")
        if not self._connection.is_up:
            await until(self._wake, self._settings.tick_s)
        elif self._stale:
            await self._listen()
        else:
            self._look_again()
            if not await self._sweep() and not self._stale:
                await self._check_missing()
                await self._rest()

    def _look_again(self) -> None:
        """Once a tick, any class may have work: no bell rings for a job handed back, or a bell was lost."""
        now_s = time.monotonic()
        if now_s >= self._tick_at_s:
            # apart from other workers', or they would all ask at once
            self._tick_at_s = now_s + self._settings.tick_s * random.uniform(0.5, 1.5)
            for desk in self._desks.values():
                desk.maybe = True

    async def _sweep(self) -> bool:
        """Ask each class that may have work; whether a job came, so that the next turn is due."""
        turn = self._order.next_turn()
        for priority in turn.classes:
            if self._stopping.is_set() or self._stale:
                return False
            batch = min(self._room(priority), turn.most)
            if batch > 0 and self._desks[priority].wants_asking:
                pull = await self._ask(priority, batch)
                await pull.ended
                if pull.got:
                    return True
        return False

    def _room(self, priority: PriorityClass) -> int:
        return max(self._free_slots(), 0) or self._on_top(priority)

    async def _rest(self) -> None:
        """Wait for a bell, a slot or the tick, with a request left at each class if all can be filled."""
        desks = self._desks.items()
        if self._free_slots() >= len(desks) and not any(desk.wants_asking for _, desk in desks):
            for priority in [priority for priority, desk in desks if desk.wants_waiting]:
                await self._ask(priority, 1, expires_s=self._settings.poll_s)
        await until(self._wake, max(0.0, self._tick_at_s - time.monotonic()))

    async def _ask(self, priority: PriorityClass, batch: int, *, expires_s: float = 0.0) -> Pull:
        self._asked += 1
        pull = Pull(priority, f"{self._inbox}.{self._asked}", batch, expires_s)
        self._desks[priority].ask(pull)
        late = asyncio.get_running_loop().call_later(
            expires_s + self._settings.answer_timeout_s, pull.end, PullEnd.LOST
        )

        def close(ended: asyncio.Future[PullEnd]) -> None:
            late.cancel()
            if not ended.cancelled():
                self._close(pull, ended.result())
            self._on_answer()

        pull.ended.add_done_callback(close)
        consumer = subjects.consumer(self._region, priority)
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{subjects.JOBS_STREAM}.{consumer}", pull.body(), reply=pull.inbox
        )
        return pull

    def _close(self, pull: Pull, end: PullEnd) -> None:
        """Remember what a request's end says of its class; log a change between sound and broken once."""
        desk = self._desks[pull.priority]
        if desk.pull is not pull:
            return
        failures = desk.failures
        desk.ended(end, now_s=time.monotonic())
        where = {"region": self._region, "class": pull.priority}
        if end is PullEnd.EMPTY:
            self._order.empty(pull.priority)
        if desk.in_doubt:
            asyncio.get_running_loop().call_later(self._settings.second_look_s, self._look_twice, desk)
        if end not in HEALTHY:
            backoff_s = desk.backoff_s(self._settings.max_backoff_s) * random.uniform(0.5, 1.0)
            asyncio.get_running_loop().call_later(backoff_s, self._rested, desk)
        if failures == 0 and desk.failures:
            log.warning("pull_broken", extra={**where, "end": end})
        elif failures and not desk.failures:
            log.info("pull_recovered", extra={**where, "failures": failures})
        self._wake.set()

    def _look_twice(self, desk: Desk) -> None:
        desk.look_again()
        self._wake.set()

    def _rested(self, desk: Desk) -> None:
        desk.rested()
        self._wake.set()

    async def _check_missing(self) -> None:
        """What nobody answers for may be gone, or have no leader: a cluster without a majority has none."""
        for priority, desk in self._desks.items():
            missing_s = desk.missing_s(time.monotonic())
            if missing_s < self._settings.missing_grace_s:
                continue
            consumer = subjects.consumer(self._region, priority)
            if await is_consumer_gone(self._connection, consumer, self._settings.answer_timeout_s):
                raise TopologyMissing(
                    f"consumer {consumer} is missing for {missing_s:.1f} s; "
                    f"run `sparkle topology apply --region {self._region}`"
                )
            log.warning("consumer_unled", extra={"region": self._region, "class": priority})
            desk.missing_since_s = time.monotonic()

    async def _take(self, envelope: Envelope) -> None:
        """A job, or a status line to one of our requests."""
        if envelope.subject.startswith(self._inbox):
            end = read_status(envelope)
            for desk in self._desks.values():
                if end is not None and desk.pull is not None and desk.pull.inbox == envelope.subject:
                    desk.pull.end(end)
            return
        delivery = Delivery.read(envelope)
        priority = PriorityClass(delivery.subject.split(".")[2])
        try:
            await self._hand_over(delivery, priority)
        finally:
            pull = self._desks[priority].pull
            if pull is not None:
                pull.take()
            self._wake.set()

    async def _hand_over(self, delivery: Delivery, priority: PriorityClass) -> None:
        if self._stopping.is_set():
            await self._connection.publish(delivery.ack_subject, nak_body(0.0))
        elif self._room(priority) <= 0:
            self.surplus += 1
            log.info("pull_surplus", extra={"region": self._region, "class": priority})
            await self._connection.publish(delivery.ack_subject, nak_body(self._settings.surplus_delay_s))
        else:
            waited_s = max(0.0, time.time() - delivery.stored_s)
            self._order.pulled(priority, waited_s=waited_s, pending=delivery.pending)
            await self._deliver(delivery)

    async def _bell(self, envelope: Envelope) -> None:
        """A job of some class was stored."""
        self._desks[PriorityClass(envelope.subject.rpartition(".")[2])].ring()
        if self._free_slots() > 0:
            self._wake.set()

    def _reconnected(self) -> None:
        # what was asked over the old connection may still be answered: a new inbox keeps it apart
        self._stale = True
        self._forget_requests()
        self._wake.set()

    def _forget_requests(self) -> None:
        """End every outstanding request without a judgement of its class."""
        for desk in self._desks.values():
            pull = desk.pull
            desk.forget()
            if pull is not None:
                pull.end(PullEnd.MOVED)

    async def _listen(self) -> None:
        """Hear jobs, statuses and bells, in an inbox that no earlier request knows."""
        await self._unsubscribe()
        self._forget_requests()
        self._stale = False
        self._inbox = self._connection.new_inbox()
        self._subscriptions = [
            await self._connection.subscribe(f"{self._inbox}.*", self._take),
            await self._connection.subscribe(subjects.bell(self._region), self._bell),
        ]

    async def _settle(self) -> None:
        """Wait for the end of the waiting requests; what comes meanwhile goes back at once."""
        waiting = [desk.pull.ended for desk in self._desks.values() if desk.pull is not None]
        if waiting and self._connection.is_up:
            await asyncio.wait(waiting)

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

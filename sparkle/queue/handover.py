"""Hands a follow-up to its conversation's home, lease and all. Knows neither engine nor cache.

A job's home is the worker that it names: it answered the conversation's last job and may hold its state.
Whoever pulls the job asks the home first. A lease is no more than knowing where a message's fate is told, so
it changes hands in one message:

    puller ── Offer ─────────▶ home     nobody there: it is gone
    puller ◀── yes, or no ──── home     at once, or when a slot becomes free within the offer's time
    puller ── the delivery ──▶ home     only as the answer to that yes

Up to the last step the job is the puller's, who runs it where no yes came in time: one of the two runs it,
never both. All the while the message is on the queue like any other, so whoever dies here, it comes again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from sparkle.config import require_positive
from sparkle.errors import ConfigError, InvalidMessage, MessageTooLarge, QueueError, TopologyMissing
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Offer
from sparkle.schemas.names import is_name
from sparkle.schemas.priority import PriorityClass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverSettings:
    """How long a follow-up waits for its home."""

    wait_s: float = 0.2
    """Until when, after the queue stored it, it waits for a slot there; then whoever pulled it runs it."""

    answer_s: float = 0.05
    """What an answer may take beyond that; a home that is frozen costs so much more."""

    delivery_s: float = 5.0
    """How long a home that said yes waits for the delivery: a long prompt takes its time."""

    def __post_init__(self) -> None:
        require_positive(self, "answer_s", "delivery_s")
        if not self.wait_s >= 0:
            raise ConfigError(f"wait_s is {self.wait_s} but must be at least 0")


class Way(StrEnum):
    """Where a follow-up runs, and why."""

    HOME = "home"  #: here: its home has pulled it
    HANDED_OVER = "handed_over"  #: at its home, which has the lease now
    BUSY = "busy"  #: here: its home had no slot in time, or did not answer
    GONE = "gone"  #: here: its home is not there


class Offers:
    """The asking side: follow-ups that this worker pulled."""

    def __init__(
        self, connection: Connection, region: str, worker: str, settings: HandoverSettings | None = None
    ) -> None:
        self._connection = connection
        self._region = region
        self._worker = worker
        self._settings = settings or HandoverSettings()

    async def offer(self, lease: Lease) -> Way | None:
        """Ask the job's home; None for a job that names none. After HANDED_OVER the lease is the home's."""
        home = lease.delivery.headers.get(subjects.HOME_HEADER, "")
        # a producer wrote it: as part of a subject it must be one token
        if not is_name(home):
            return None
        way = Way.HOME if home == self._worker else await self._ask(lease, home)
        waited_s = max(0.0, time.time() - lease.stored_s)
        ids = {"job": lease.address.job, "tenant": lease.address.tenant, "home": home}
        log.info("follow_up", extra={**ids, "way": way.value, "waited_s": round(waited_s, 4)})
        return way

    async def _ask(self, lease: Lease, home: str) -> Way:
        wait_s = self._left_s(lease.stored_s)
        address = lease.address
        offer = Offer(job=address.job, priority=address.priority, wait_ms=int(wait_s * 1000))
        try:
            answer = await self._connection.request(
                subjects.offer(self._region, home), encode(offer), timeout_s=wait_s + self._settings.answer_s
            )
            # a queue that was away meanwhile may be another one, where the message is no longer this job's
            if not answer.reply or lease.is_doubtful or not self._connection.is_up:
                return Way.BUSY
            try:
                await self._give(lease.delivery, answer.reply)
            except MessageTooLarge:
                # with its new headers; the home keeps no slot for it
                await self._connection.publish(answer.reply, b"")
                return Way.BUSY
        except TopologyMissing:
            return Way.GONE
        except QueueError:
            return Way.BUSY
        return Way.HANDED_OVER

    async def _give(self, delivery: Delivery, inbox: str) -> None:
        # a producer wrote the job's own: some cannot be sent again, others would pass for the server's word
        headers = {subjects.SUBJECT_HEADER: delivery.subject, subjects.ACK_HEADER: delivery.ack_subject}
        if subjects.TRACE_HEADER in delivery.headers:
            headers[subjects.TRACE_HEADER] = delivery.headers[subjects.TRACE_HEADER]
        if is_name(key_id := delivery.headers.get(subjects.KEY_HEADER, "")):
            headers[subjects.KEY_HEADER] = key_id
        if delivery.is_repeated:
            headers[subjects.PUBLICATION_HEADER] = "2"
        await self._connection.publish(inbox, delivery.payload, headers=headers)

    def _left_s(self, stored_s: float) -> float:
        """What is left of the wait: one that waited in the queue has none, and holds no slot up here."""
        waited_s = time.time() - stored_s
        return min(max(0.0, self._settings.wait_s - waited_s), self._settings.wait_s)


class Room(Protocol):
    """The slots of a worker, as an offer sees them."""

    async def reserve(self, priority: PriorityClass, wait_s: float) -> bool:
        """Keep a slot, as soon as one is free; False when none was within `wait_s`."""
        ...

    def release(self) -> None:
        """The slot that was kept is used, or not needed."""
        ...


class OfferDesk:
    """The answering side: follow-ups of conversations that this worker may hold."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        worker: str,
        room: Room,
        deliver: Callable[[Delivery], Awaitable[None]],
        settings: HandoverSettings | None = None,
    ) -> None:
        """`deliver` takes a slot before it first awaits, returns soon, and leaves the work to a task."""
        self._connection = connection
        self._subject = subjects.offer(region, worker)
        self._room = room
        self._deliver = deliver
        self._settings = settings or HandoverSettings()
        self._subscription: Subscription | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Answer offers from now on. Raises NotConnected."""
        self._subscription = await self._connection.subscribe(self._subject, self._take)

    async def stop(self) -> None:
        """Answer no more; returns when no delivery can come any more, also when it is cancelled."""
        try:
            if self._subscription is not None:
                await self._subscription.stop()
                self._subscription = None
            if self._answering:
                await asyncio.wait(self._answering)
        finally:
            for answering in self._answering:
                answering.cancel()

    async def _take(self, envelope: Envelope) -> None:
        offer = decode(envelope.payload, Offer)
        if not envelope.reply:
            raise InvalidMessage("reply: missing; an offer says where its answer goes")
        # beside the others: one that waits for a slot must not hold up one of a shorter class
        task = asyncio.create_task(self._answer(offer, envelope.reply), name="answer-offer")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, offer: Offer, puller: str) -> None:
        """Say yes or no to an offer whose answers go to the subject `puller`."""
        try:
            if not await self._room.reserve(offer.priority, offer.wait_ms / 1000):
                await self._connection.publish(puller, b"")
                return
            try:
                delivery = await self._fetch(puller)
                if delivery is not None:
                    await self._deliver(delivery)
            finally:
                self._room.release()
        except (QueueError, InvalidMessage) as error:
            # the job is still the puller's, or comes again
            log.warning("offer_not_taken", extra={"job": offer.job, "error": type(error).__name__})

    async def _fetch(self, puller: str) -> Delivery | None:
        """Say yes; the delivery that is the answer, or None for none, or for one of a queue that is gone.

        Raises what `Connection.request` raises, and InvalidMessage.
        """
        generation = self._connection.generation
        envelope = await self._connection.request(puller, timeout_s=self._settings.delivery_s)
        if self._connection.generation != generation or not (envelope.headers or envelope.payload):
            return None
        subject = envelope.headers.get(subjects.SUBJECT_HEADER, "")
        ack_subject = envelope.headers.get(subjects.ACK_HEADER, "")
        return Delivery.read(replace(envelope, subject=subject, reply=ack_subject))

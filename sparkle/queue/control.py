"""Beside the jobs: what producers tell workers live, and heartbeats out and in. Knows no engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from sparkle.errors import ConfigError, InvalidMessage, NotConnected, PublishUncertain
from sparkle.queue.connection import NOBODY, Connection, Envelope, Subscription
from sparkle.queue.waiting import until
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Cancel, EndConversation, Heartbeat, WorkerState
from sparkle.schemas.names import require_name

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""How often a worker says that it is alive."""


MAX_WORKERS = 4_096
"""Workers of one region that are remembered."""


class ControlFeed:
    """Tells a worker of cancels and ended conversations as they are published, and when it is to end.

    Tombstones tell of earlier cancels; what a worker keeps of a conversation goes in time by itself.
    """

    def __init__(
        self,
        connection: Connection,
        region: str,
        worker: str,
        *,
        on_cancel: Callable[[str, str], None],
        on_conversation_end: Callable[[str, str], None],
        on_drain: Callable[[], None],
    ) -> None:
        """The first two get the tenant, then job or conversation, and ignore what is not known here."""
        self._connection = connection
        self._region = region
        self._worker = worker
        self._on_drain = on_drain
        self._on_cancel = on_cancel
        self._on_conversation_end = on_conversation_end
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Hear from now on. Raises NotConnected."""
        for subject, take in (
            (subjects.cancel("*", "*"), self._take_cancel),
            (subjects.end_conversation("*", "*"), self._take_conversation_end),
            (subjects.drain(self._region, self._worker), self._take_drain),
        ):
            self._subscriptions.append(await self._connection.subscribe(subject, take))

    async def stop(self) -> None:
        """Hear no more."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

    # the subject is what permissions bind a tenant to; a message that names something else is refused

    async def _take_cancel(self, envelope: Envelope) -> None:
        _, _, tenant, job = envelope.subject.split(".")
        if decode(envelope.payload, Cancel).job != job:
            raise InvalidMessage("job: not the one of the subject")
        self._on_cancel(tenant, job)

    async def _take_conversation_end(self, envelope: Envelope) -> None:
        _, _, tenant, conversation = envelope.subject.split(".")
        if decode(envelope.payload, EndConversation).conversation != conversation:
            raise InvalidMessage("conversation: not the one of the subject")
        self._on_conversation_end(tenant, conversation)

    async def _take_drain(self, envelope: Envelope) -> None:
        self._on_drain()


async def drain_worker(connection: Connection, region: str, worker: str) -> None:
    """Tell a worker to hand its jobs over and end; returns once its heartbeat says that it has begun to.

    Raises ConfigError when no worker of this name serves the region, PublishUncertain when it does not begin.
    """
    require_name("worker", worker)
    subject = subjects.heartbeat(region, worker)
    begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def take(envelope: Envelope) -> None:
        # the server itself answers where nobody listens
        missing = envelope.status == NOBODY
        drains = missing or decode(envelope.payload, Heartbeat).state is WorkerState.DRAINING
        if drains and not begun.done():
            begun.set_result(not missing)

    subscription = await connection.subscribe(subject, take)
    try:
        await connection.publish(subjects.drain(region, worker), b"", reply=subject)
        async with asyncio.timeout(connection.settings.request_timeout_s):
            is_there = await begun
    except TimeoutError:
        raise PublishUncertain(f"{worker} does not say that it drains; tell it again") from None
    finally:
        await subscription.stop()
    if not is_there:
        raise ConfigError(
            f"no worker named {worker} is connected in region {region}; "
            f"`sparkle status --region {region}` shows those that are"
        )


class HeartbeatSender:
    """Says every `interval_s` that a worker is alive."""

    def __init__(
        self, connection: Connection, make: Callable[[], Heartbeat], interval_s: float = HEARTBEAT_S
    ) -> None:
        if interval_s <= 0:
            raise ConfigError(f"interval_s is {interval_s} but must be above 0")
        self._connection = connection
        self._make = make
        self._interval_s = interval_s
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; a server that is away ends nothing."""
        while True:
            self._due.clear()
            await self.send()
            await until(self._due, self._interval_s)

    def soon(self) -> None:
        """Say it without waiting for its time: to somebody who has not heard it yet."""
        self._due.set()

    async def send(self) -> None:
        """Say it now, as when a worker begins to drain."""
        # held back, a heartbeat would later tell of a time long gone
        if not self._connection.is_up:
            return
        heartbeat = self._make()
        try:
            await self._connection.publish(
                subjects.heartbeat(heartbeat.region, heartbeat.worker), encode(heartbeat)
            )
        except NotConnected:
            log.debug("heartbeat_unsent")


class WorkerRoster:
    """The workers of a region by their last heartbeat."""

    def __init__(
        self,
        connection: Connection,
        region: str,
        forget_after_s: float = 3 * HEARTBEAT_S,
        *,
        on_news: Callable[[Heartbeat], None] = lambda _: None,
    ) -> None:
        """`on_news` gets the first heartbeat of a worker, and the first one of each state."""
        self._on_news = on_news
        self._connection = connection
        self._region = region
        self._forget_after_s = forget_after_s
        # whoever was heard of longest ago stands first
        self._last: OrderedDict[str, tuple[float, Heartbeat]] = OrderedDict()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Hear heartbeats from now on. Raises NotConnected."""
        subject = subjects.heartbeat(self._region)
        self._subscription = await self._connection.subscribe(subject, self._take)

    async def stop(self) -> None:
        """Hear no more."""
        if self._subscription is not None:
            await self._subscription.stop()
            self._subscription = None

    def workers(self) -> list[Heartbeat]:
        """Who spoke within `forget_after_s`, by name."""
        self._forget()
        return [heartbeat for _, (_, heartbeat) in sorted(self._last.items())]

    async def _take(self, envelope: Envelope) -> None:
        heartbeat = decode(envelope.payload, Heartbeat)
        # permissions bind a worker to its subject: nobody speaks for another one
        if envelope.subject != subjects.heartbeat(heartbeat.region, heartbeat.worker):
            raise InvalidMessage("worker, region: not the ones of the subject")
        before = self._last.get(heartbeat.worker)
        self._last[heartbeat.worker] = (time.monotonic(), heartbeat)
        self._last.move_to_end(heartbeat.worker)
        self._forget()
        if before is None or before[1].state is not heartbeat.state:
            self._on_news(heartbeat)

    def _forget(self) -> None:
        """Let go of who fell silent, and beyond MAX_WORKERS of who was heard of longest ago."""
        oldest_s = time.monotonic() - self._forget_after_s
        while self._last:
            at_s, _ = next(iter(self._last.values()))
            if at_s >= oldest_s and len(self._last) <= MAX_WORKERS:
                break
            self._last.popitem(last=False)

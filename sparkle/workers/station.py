"""What all jobs of one worker share: settings, engine, way back to producers, metrics. Knows no job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sparkle.engine.client import EngineProcess
from sparkle.errors import NotConnected
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.connection import Connection
from sparkle.queue.handover import Offers
from sparkle.queue.job_seals import JobSeals
from sparkle.queue.replies import ReplyStream
from sparkle.queue.usage import send_usage, store_usage
from sparkle.schemas.control import UsageRecord
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.probation import Probation
from sparkle.workers.settings import WorkerSettings
from sparkle.workers.shape_check import ShapeCheck

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Where jobs run."""

    worker: str
    """This worker's name."""

    settings: WorkerSettings
    connection: Connection
    replies: ReplyStream
    seals: JobSeals
    records: AnswerRecords
    offers: Offers
    engine: EngineProcess
    metrics: WorkerMetrics
    unix_s: Callable[[], float]
    """Unix time, which no step of the machine's clock moves: what deadlines are judged by."""

    shapes: ShapeCheck
    probation: Probation = field(default_factory=Probation)

    async def store_usage(self, record: UsageRecord) -> None:
        """Send a metering record and wait until it is stored. Raises QueueError, MessageTooLarge."""
        await store_usage(self.connection, record)

    async def publish_usage(self, record: UsageRecord) -> None:
        """Send a metering record; while the server is away it waits, up to the connection's bound."""
        try:
            await send_usage(self.connection, record)
        except NotConnected:
            log.warning("usage_unsent", extra={"job": record.job, "tenant": record.tenant})

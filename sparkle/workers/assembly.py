"""Puts a worker together, in order, and takes it apart in the opposite one. Knows no job."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack

from sparkle.clock import SteadyUnixClock
from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import UNUSABLE_CODE
from sparkle.errors import CheckpointError, EngineExited
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.bus_access import workers_of
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import HeartbeatSender
from sparkle.queue.handover import HandoverSettings, Offers
from sparkle.queue.job_seals import JobSeals
from sparkle.queue.namesake import Namesake
from sparkle.queue.replies import ReplyStream
from sparkle.queue.storage import require_memory
from sparkle.queue.usage import require_meter
from sparkle.queue.wills import Heir
from sparkle.workers.check_client import CheckProcess
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.pulse import Pulse
from sparkle.workers.settings import WorkerSettings, new_worker_name
from sparkle.workers.shape_check import ShapeCheck
from sparkle.workers.station import Station
from sparkle.workers.worker import Worker

log = logging.getLogger(__name__)


async def run_worker(
    settings: WorkerSettings,
    engine: EngineProcess,
    life: LifeCycle,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Be a worker until `life` says to end; returns when each job is finished or handed back.

    `engine` has not been started yet; it is stopped at the end. `tell` takes lines for people: what the
    engine's memory went to.

    Raises NotConnected, TopologyMissing, EngineExited, CheckpointError or ConfigError when it cannot go on;
    its jobs have been handed back by then, where there is a server to take them.
    """
    worker = settings.name or new_worker_name()
    metrics = WorkerMetrics()
    pulse = Pulse(worker=worker, region=settings.region, life=life)
    encryption = settings.encryption
    seals = JobSeals(encryption.ring(), required=encryption.required)
    async with AsyncExitStack() as stack:
        if settings.metrics_port is not None:
            server = metrics.serve(settings.metrics_port)
            stack.callback(server.stop)
            log.info("metrics_served", extra={"worker": worker, "port": server.port})
        at = ConnectionSettings(
            url=settings.nats, name=worker, access=settings.bus, inbox_group=workers_of(settings.region)
        )
        connection = await Connection.open(at)
        stack.push_async_callback(connection.close)
        await require_memory(connection)
        replies = ReplyStream(connection, worker, seals=seals)
        await replies.start()
        stack.push_async_callback(replies.stop)
        # asked for no job at all: raises TopologyMissing now, not with the first one
        await replies.is_cancelled("none", "none")
        if settings.metered:
            await require_meter(connection, settings.region)
        namesake = Namesake(connection, settings.region, worker)
        await namesake.listen()
        heir = Heir(
            connection, settings.region, worker, secrets.token_hex(8), on_handed_on=metrics.rescued.inc
        )
        # before it is heard of: whoever is, while its model loads, can look after one that is alone
        await heir.start()
        stack.push_async_callback(heir.stop)
        watching = asyncio.create_task(heir.run(), name="watch-wills")
        stack.callback(watching.cancel)
        heart = HeartbeatSender(connection, pulse.heartbeat, settings.heartbeat_s)
        beating = asyncio.create_task(heart.run(), name="heartbeat")
        stack.callback(beating.cancel)
        stack.push_async_callback(engine.stop)
        if not await _started(engine, life, namesake):
            return
        for line in engine.ready.memory:
            tell(line)
        checks = CheckProcess()
        stack.push_async_callback(checks.close)
        handover = HandoverSettings(wait_s=settings.follow_up_wait_ms / 1000)
        station = Station(
            worker=worker,
            settings=settings,
            connection=connection,
            replies=replies,
            seals=seals,
            records=AnswerRecords(connection, seals),
            offers=Offers(connection, settings.region, worker, handover),
            engine=engine,
            metrics=metrics,
            unix_s=SteadyUnixClock(),
            shapes=ShapeCheck(checks, metrics),
        )
        serving = Worker(station, life, heart, heir)
        metrics.slots.set(engine.ready.slots)
        pulse.serving(model=engine.ready.model, slots=engine.ready.slots, jobs=serving.jobs)
        await serving.serve()
    log.info("worker_ended", extra={"worker": worker})


async def _started(engine: EngineProcess, life: LifeCycle, namesake: Namesake) -> bool:
    """Start the engine; False if a signal came first, with the process ended.

    Raises EngineExited, CheckpointError where the engine says by its exit code that another try is no use,
    or ConfigError where another process serves under the worker's name.
    """
    starting = asyncio.create_task(engine.start(), name="start-engine")
    told = asyncio.create_task(life.draining.wait())
    taken = asyncio.create_task(namesake.heard.wait())
    try:
        await asyncio.wait({starting, told, taken}, return_when=asyncio.FIRST_COMPLETED)
        await namesake.stop()
        namesake.require_none()
        if starting.done():
            starting.result()
            return True
        # loading cannot be interrupted by a frame, and there is nothing to lose yet
        await engine.stop(grace_s=0.0)
        return False
    except EngineExited:
        if engine.returncode == UNUSABLE_CODE:
            raise CheckpointError("the engine cannot use the model; its last line says why") from None
        raise
    finally:
        for task in (starting, told, taken):
            task.cancel()
        await asyncio.gather(starting, told, taken, return_exceptions=True)

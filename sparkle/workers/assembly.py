"""Puts a worker together, in order, and takes it apart in the opposite one. Knows no job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack

from sparkle.engine.client import EngineProcess
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import HeartbeatSender
from sparkle.queue.replies import ReplyStream
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.pulse import Pulse
from sparkle.workers.settings import WorkerSettings, new_worker_name
from sparkle.workers.station import Station
from sparkle.workers.worker import Worker

log = logging.getLogger(__name__)

StartEngine = Callable[[], Coroutine[None, None, EngineProcess]]
"""Starts the engine process and returns it once its model is loaded."""


async def run_worker(
    settings: WorkerSettings, queue: ConnectionSettings, start_engine: StartEngine, life: LifeCycle
) -> None:
    """Be a worker until `life` says to end; returns when each job is finished or handed back.

    Raises NotConnected, TopologyMissing, CheckpointError, EngineExited or ConfigError when it cannot go on;
    its jobs have been handed back by then, where there is a server to take them.
    """
    worker = settings.name or new_worker_name()
    metrics = WorkerMetrics()
    pulse = Pulse(worker=worker, region=settings.region, life=life)
    async with AsyncExitStack() as stack:
        if settings.metrics_port is not None:
            server = metrics.serve(settings.metrics_port)
            stack.callback(server.stop)
            log.info("metrics_served", extra={"worker": worker, "port": server.port})
        connection = await Connection.open(queue)
        stack.push_async_callback(connection.close)
        replies = ReplyStream(connection, worker)
        await replies.start()
        stack.push_async_callback(replies.stop)
        # asked for no job at all: raises TopologyMissing now, not with the first one
        await replies.is_cancelled("none", "none")
        heart = HeartbeatSender(connection, pulse.heartbeat, settings.heartbeat_s)
        beating = asyncio.create_task(heart.run(), name="heartbeat")
        stack.callback(beating.cancel)
        engine = await _unless_told_to_end(start_engine(), life)
        if engine is None:
            return
        stack.push_async_callback(engine.stop)
        station = Station(
            worker=worker,
            settings=settings,
            connection=connection,
            replies=replies,
            engine=engine,
            metrics=metrics,
        )
        serving = Worker(station, life)
        metrics.slots.set(engine.ready.slots)
        pulse.serving(model=engine.ready.model, slots=engine.ready.slots, jobs=serving.jobs)
        await serving.serve()
    log.info("worker_ended", extra={"worker": worker})


async def _unless_told_to_end(
    starting: Coroutine[None, None, EngineProcess], life: LifeCycle
) -> EngineProcess | None:
    """The engine once it is ready; None if a signal came first, with the process ended."""
    start = asyncio.create_task(starting, name="start-engine")
    told = asyncio.create_task(life.draining.wait())
    try:
        await asyncio.wait({start, told}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            return start.result()
        return None
    finally:
        for task in (start, told):
            task.cancel()
        await asyncio.gather(start, told, return_exceptions=True)

"""One worker serving: jobs for free slots, pulled or offered; frames; a drain when told. Knows no content."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from sparkle.engine.frames import Accepted, Cached, Delta, Failed, Finished
from sparkle.errors import EngineExited, NotConnected
from sparkle.queue.control import ControlFeed, HeartbeatSender, WorkerRoster
from sparkle.queue.handover import OfferDesk
from sparkle.queue.puller import Puller
from sparkle.queue.wills import Heir, WillMaker
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.engine_watch import EngineWatch
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.running import RunningJobs
from sparkle.workers.slots import Slots
from sparkle.workers.station import Station

log = logging.getLogger(__name__)

_SETTLE_S = 3.0
_MAX_ENGINE_ENDS = 5
_ENGINE_ENDS_S = 600.0


class Worker:
    """A connected worker whose engine is ready."""

    def __init__(self, station: Station, life: LifeCycle, heart: HeartbeatSender, heir: Heir) -> None:
        """`heart` beats already, and tells each change of state at once here; `heir` takes wills already."""
        self._heir = heir
        self._station = station
        self._life = life
        self._heart = heart
        self._running = RunningJobs(station, on_begin=lambda: self._will.changed(), on_end=self._slot_freed)
        self._roster = WorkerRoster(station.connection, station.settings.region, on_news=self._met)
        self._will = WillMaker(
            station.connection,
            station.settings.region,
            station.worker,
            heir.process,
            leases=lambda: self._running.leases,
            peers=self._peers,
        )
        self._puller = Puller(
            station.connection,
            station.settings.region,
            self._free_slots,
            self._running.start,
            on_top=self._on_top,
            on_answer=lambda: self._slots.freed(),
        )
        self._slots = Slots(station.engine.ready.slots, self._running.__len__, lambda: self._puller.asked)
        self._offers = OfferDesk(
            station.connection, station.settings.region, station.worker, self._slots, self._running.start
        )
        self._control = ControlFeed(
            station.connection,
            station.settings.region,
            station.worker,
            on_cancel=self._running.cancel,
            on_conversation_end=station.engine.end_conversation,
            on_drain=life.drain,
        )
        self._watch = EngineWatch(station.engine, station.settings.pass_limit_s)
        self._ends_s: deque[float] = deque(maxlen=_MAX_ENGINE_ENDS)

    def jobs(self) -> list[str]:
        """Ids of the jobs held now."""
        return self._running.jobs

    async def serve(self) -> None:
        """Take jobs until `life` says to end; returns when each is finished or handed back.

        Raises EngineExited, NotConnected or TopologyMissing when it cannot go on, after handing jobs back.
        """
        await self._control.start()
        await self._roster.start()
        pulling = asyncio.create_task(self._puller.run(), name="pull")
        tasks = {
            pulling,
            asyncio.create_task(self._serve_engine(), name="serve-engine"),
            asyncio.create_task(self._watch.run(), name="watch-engine"),
            asyncio.create_task(self._will.run(), name="tell-will"),
            asyncio.create_task(self._watch_connection(), name="watch-connection"),
        }
        ending = asyncio.create_task(self._drain(), name="drain")
        try:
            await self._offers.start()
            self._life.ready()
            await self._heart.send()
            log.info("worker_ready", extra={"worker": self._station.worker, "slots": self._slots.total})
            await _first_end(ending, tasks)
        finally:
            self._take_no_more()
            await self._heir.stop()
            # at once: what comes straight back, to a request that waits, is handed back at once as well
            await self._running.hand_back()
            settling = asyncio.create_task(self._offers.stop(), name="settle-offers")
            await asyncio.wait({pulling, settling}, timeout=_SETTLE_S)
            await _cancel({settling})
            await self._running.hand_back()
            await self._control.stop()
            await self._roster.stop()
            await _cancel({ending, *tasks})

    async def _drain(self) -> None:
        """Once told to, take nothing new; wait until nothing runs, or until what does is to go."""
        await self._life.draining.wait()
        self._take_no_more()
        log.info("worker_draining", extra={"worker": self._station.worker, "running": len(self._running)})
        await self._heart.send()
        waits = {
            asyncio.create_task(self._running.wait_idle()),
            asyncio.create_task(self._life.handing_back.wait()),
        }
        try:
            await asyncio.wait(
                waits,
                timeout=self._station.settings.drain_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await _cancel(waits)

    async def _serve_engine(self) -> None:
        """Route its frames; where it ends, hand its jobs back and start it again. Raises EngineExited."""
        while True:
            try:
                await self._route_frames()
            except EngineExited as error:
                log.error("engine_ended", extra={"how": str(error), "running": len(self._running)})
                await self._start_engine_again(error)

    async def _route_frames(self) -> None:
        async for frame in self._station.engine.frames:
            self._watch.heard()
            if isinstance(frame, Accepted | Delta | Finished | Failed):
                self._running.frame(frame)
            elif isinstance(frame, Cached):
                self._station.metrics.cached(frame)
        raise EngineExited("the engine process was stopped")

    async def _start_engine_again(self, error: EngineExited) -> None:
        self._slots.pause()
        await self._running.engine_ended()
        now_s = asyncio.get_running_loop().time()
        if len(self._ends_s) == self._ends_s.maxlen and now_s - self._ends_s[0] < _ENGINE_ENDS_S:
            # it is not a job: a machine, or a GPU, that another process cannot mend
            raise error
        self._ends_s.append(now_s)
        ready = await self._station.engine.restart()
        self._station.metrics.engine_restarts.inc()
        log.info("engine_restarted", extra={"load_s": round(ready.load_s, 3)})
        self._slots.resume()
        self._puller.wake()

    async def _watch_connection(self) -> None:
        await self._station.connection.closed.wait()
        raise NotConnected("the connection to the queue ended for good; start the worker again")

    def _met(self, other: Heartbeat) -> None:
        """One came, or changed: it can be this one's heir, and needs one itself before it takes a job."""
        if other.worker != self._station.worker:
            self._heart.soon()
            self._will.changed()

    def _peers(self) -> list[str]:
        """Who can keep a will: also one whose model is still loading."""
        return [one.worker for one in self._roster.workers() if one.state is not WorkerState.DRAINING]

    def _free_slots(self) -> int:
        return 0 if self._life.draining.is_set() else self._slots.free

    def _on_top(self, priority: PriorityClass) -> int:
        """The engine has longer jobs give way to one of this class."""
        if self._life.draining.is_set():
            return 0
        return self._slots.on_top(self._running.longer_than(priority))

    def _take_no_more(self) -> None:
        self._puller.stop()
        self._slots.close()

    def _slot_freed(self) -> None:
        # an offer that waits goes before what the queue holds
        self._slots.freed()
        self._puller.wake()


async def _first_end(ending: asyncio.Task[None], tasks: set[asyncio.Task[None]]) -> None:
    """Wait for `ending`, or the first of the others that raises; one that just returns changes nothing."""
    waiting = {ending, *tasks}
    while not ending.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _cancel(tasks: Iterable[asyncio.Task[object]]) -> None:
    """End tasks that are still at work, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

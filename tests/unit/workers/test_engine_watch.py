"""An engine that answers is left alone, one that does not is ended: by counted checks, not by the clock."""

from __future__ import annotations

import asyncio
import contextlib

from sparkle.workers.engine_watch import EngineWatch


class Engine:
    """Answers pings, or not; a kill is its end."""

    def __init__(self, *, answers: bool, is_loading: bool = False) -> None:
        self.is_loading = is_loading
        self.looks = 0
        self.answers = answers
        self.pings = 0
        self.kills = 0
        self.watch = EngineWatch(self, 0.004)
        self.watched = asyncio.Event()

    @property
    def is_up(self) -> bool:
        self.looks += 1
        if self.looks == 80:
            self.watched.set()
        return not self.is_loading and not self.kills

    def ping(self) -> None:
        self.pings += 1
        if self.answers:
            self.watch.heard()

    def kill(self) -> None:
        self.kills += 1


async def watched(engine: Engine) -> None:
    task = asyncio.create_task(engine.watch.run())
    await engine.watched.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_one_that_answers_is_never_ended() -> None:
    engine = Engine(answers=True)
    await watched(engine)
    assert (engine.pings, engine.kills) == (80, 0)


async def test_one_that_is_silent_is_ended_after_it_was_asked_four_times() -> None:
    engine = Engine(answers=False)
    await watched(engine)
    assert (engine.pings, engine.kills) == (4, 1)


async def test_one_that_loads_is_neither_asked_nor_ended() -> None:
    engine = Engine(answers=False, is_loading=True)
    await watched(engine)
    assert (engine.pings, engine.kills) == (0, 0)

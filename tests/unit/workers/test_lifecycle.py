"""What signals do in which order, and which exit code belongs to which error."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sparkle.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    EngineExited,
    NotConnected,
    PublishUncertain,
    SparkleError,
    TopologyMissing,
    UnsupportedModel,
)
from sparkle.schemas.control import WorkerState
from sparkle.workers.lifecycle import ExitCode, LifeCycle, exit_code


def seen(life: LifeCycle) -> tuple[WorkerState, bool, bool]:
    return life.state, life.draining.is_set(), life.handing_back.is_set()


def test_the_first_signal_drains_and_the_second_hands_back() -> None:
    life = LifeCycle()
    assert seen(life) == (WorkerState.STARTING, False, False)
    life.ready()
    assert seen(life) == (WorkerState.READY, False, False)
    life.interrupt()
    assert seen(life) == (WorkerState.DRAINING, True, False)
    life.interrupt()
    assert seen(life) == (WorkerState.DRAINING, True, True)


def test_a_worker_told_to_end_while_it_starts_never_becomes_ready() -> None:
    life = LifeCycle()
    life.interrupt()
    life.ready()
    assert life.state is WorkerState.DRAINING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_both_signals_interrupt_while_they_are_watched(number: signal.Signals) -> None:
    life, loop = LifeCycle(), asyncio.get_running_loop()
    life.watch_signals(loop)
    try:
        os.kill(os.getpid(), number)
        await life.draining.wait()
        assert not life.handing_back.is_set()
        os.kill(os.getpid(), number)
        await life.handing_back.wait()
    finally:
        for watched in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(watched)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineExited("x"), 3),
        (EngineError("x"), 3),
        (NotConnected("x"), 4),
        (PublishUncertain("x"), 4),
        (TopologyMissing("x"), 5),
        (ConfigError("x"), 2),
        (CheckpointError("x"), 2),
        (UnsupportedModel("x"), 2),
    ],
)
def test_every_error_has_its_exit_code(error: SparkleError, code: int) -> None:
    assert exit_code(error) == code
    assert exit_code(error) != ExitCode.OK

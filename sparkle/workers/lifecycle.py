"""Where the worker is in its life, what signals do to it, and how it ends. Knows no job and no queue.

STARTING ─▶ READY ─▶ DRAINING ─▶ end
A first SIGTERM or SIGINT drains: nothing new is taken, running jobs are handed over, or finish where they are
given time for it. A second one hands over what still runs.
"""

from __future__ import annotations

import asyncio
import signal
from enum import IntEnum

from sparkle.errors import EngineError, QueueError, SparkleError, TopologyMissing
from sparkle.schemas.control import WorkerState

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ExitCode(IntEnum):
    """How the worker process ended, for whoever starts it again."""

    OK = 0  #: asked to end, and did
    UNUSABLE = 2  #: the settings or the model cannot be used: starting again will not help
    ENGINE_EXITED = 3  #: the engine process ended, and starting it again failed; jobs were handed back
    DISCONNECTED = 4  #: no server, or the connection ended for good
    TOPOLOGY_MISSING = 5  #: the streams are not declared


class LifeCycle:
    """The state, and the two events that signals set."""

    def __init__(self) -> None:
        self.state = WorkerState.STARTING
        self.draining = asyncio.Event()
        self.handing_back = asyncio.Event()

    def ready(self) -> None:
        """The engine can take jobs; a signal that came earlier still counts."""
        if self.state is WorkerState.STARTING:
            self.state = WorkerState.READY

    def interrupt(self) -> None:
        """What a signal does: drain, and the second time hand back."""
        if self.draining.is_set():
            self.handing_back.set()
        self.drain()

    def drain(self) -> None:
        """Take nothing new."""
        self.state = WorkerState.DRAINING
        self.draining.set()

    def watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on SIGTERM and SIGINT interrupt."""
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.interrupt)


def exit_code(error: SparkleError) -> ExitCode:
    """How a process ends that ends with `error`."""
    match error:
        # also one whose frames make no sense: another process may do better
        case EngineError():
            return ExitCode.ENGINE_EXITED
        case TopologyMissing():
            return ExitCode.TOPOLOGY_MISSING
        case QueueError():
            return ExitCode.DISCONNECTED
        case _:
            return ExitCode.UNUSABLE

"""Runs a command's coroutine so that Ctrl-C and SIGTERM let it clean up. Knows no queue."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine

from sparkle.errors import QueueError
from sparkle.producers.handle import Handle

log = logging.getLogger(__name__)

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM or SIGHUP."""

CANCEL_TIMEOUT_S = 2.0
"""How long an ending program tries to tell the queue that it wants a job no more."""


def run(main: Coroutine[None, None, int]) -> int:
    """The exit code of `main`; a signal cancels it once, and its clean-up runs to the end.

    A terminal that closes is a signal as well, save under nohup.
    """

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs is in a task"
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await main

    try:
        return asyncio.run(guarded())
    except KeyboardInterrupt:
        return INTERRUPTED
    except asyncio.CancelledError:
        return TERMINATED


async def abandon(handle: Handle) -> None:
    """Cancel a job on the way out: a queue that is away must not hold the program up."""
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await handle.cancel()
    except (QueueError, TimeoutError) as error:
        log.warning("cancel_failed", extra={"job": handle.job_id, "error": type(error).__name__})

"""What each of our processes does first, so that no content leaves its memory when it fails. Knows no part.

A core dump is a file of all that a process holds. An error's text, and what Python prints around it, may hold
what a function was given. So neither is left to the defaults.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import resource
import sys
import threading

from sparkle.quiet.failures import kind_of, place_of
from sparkle.quiet.logs import log_to_stderr

log = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4


def keep_content_in(level: int = logging.INFO) -> None:
    """No core dump; events from `level` on and whatever nobody catches go to stderr, without any value.

    Errors of tasks and callbacks that nobody awaits come as asyncio's events, so as libraries' warnings do.
    """
    dump_no_core()
    # of a crash below Python it tells files, lines and functions
    faulthandler.enable()
    log_to_stderr(level)
    sys.excepthook = lambda _kind, error, _trace: _report("process_failed", error)
    threading.excepthook = lambda lost: _report("thread_failed", lost.exc_value)
    # of an object that fails while it goes, Python would print the object
    sys.unraisablehook = lambda lost: _report("unraisable", lost.exc_value)


def dump_no_core() -> None:
    """No file for this process and its children, and on Linux nothing to a program that collects dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # a limit of 0 stops files alone: where dumps go to a program the kernel does not look at it
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _report(event: str, error: BaseException | None) -> None:
    if error is not None:
        log.critical(event, extra={"error": kind_of(error), "place": place_of(error)})

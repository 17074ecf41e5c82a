"""What each of our processes does first, so that no content leaves its memory when it fails. Knows no part.

A core dump is a file of all that a process holds. An error's text, and what Python prints around it, may hold
what a function was given. So neither is left to the defaults.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading

from sparkle.config import leave_out
from sparkle.quiet.failures import kind_of, place_of
from sparkle.quiet.logs import log_to, log_to_stderr

log = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1
_GPU_DUMPS = (
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION",
)
"""Read by the driver as it starts."""


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
    """No file for this process and its children, and on Linux nothing to a program that collects dumps.

    Nor does the GPU's driver write one of the GPU's memory.
    """
    leave_out(*_GPU_DUMPS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # a limit of 0 stops files alone: where dumps go to a program the kernel does not look at it
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def silence_libraries() -> None:
    """From now on nothing but events, and the places of a crash, reaches stdout and stderr.

    A library in another language prints what it likes, past Python: Rust, which makes tokens of texts, quotes
    a text when it fails over one. To be called before there is any content: what is said until then helps.
    """
    own = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", buffering=1)
    log_to(own)
    faulthandler.enable(own)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def end_with_parent() -> None:
    """On Linux: end this process when the thread that began it has ended, whatever it is busy with."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _report(event: str, error: BaseException | None) -> None:
    if error is not None:
        log.critical(event, extra={"error": kind_of(error), "place": place_of(error)})

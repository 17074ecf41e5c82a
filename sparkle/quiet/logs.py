"""A process's events as lines of JSON on stderr, of every process in the same form. Knows no event."""

from __future__ import annotations

import json
import logging
import sys
from enum import StrEnum
from typing import TextIO

from sparkle.quiet.failures import kind_of, place_of

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogLevel(StrEnum):
    """From which events on a process tells them."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As `logging` has it."""
        return logging.getLevelNamesMapping()[self.name]


class EventFormatter(logging.Formatter):
    """A record's time, level, event and fields; of a library's no text, for that may hold content."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. An exception is told by its kind and place, without any value."""
        ours = record.name.split(".")[0] == "sparkle"
        line: dict[str, object] = {
            "time_s": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.msg if ours else "library_event",
            "logger": record.name,
        }
        if ours:
            line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line |= {"error": kind_of(error), "place": place_of(error)}
        return json.dumps(line, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """From now on the process's events go to stderr from `level` on, libraries' and warnings' at most so."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter())
    # whoever has set up handlers already keeps them
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger().setLevel(max(level, logging.WARNING))
    logging.getLogger("sparkle").setLevel(level)


def log_to(stream: TextIO) -> None:
    """From now on the process's events go to `stream` instead, which stays open as long as the process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.formatter, EventFormatter):
            handler.setStream(stream)  # pyright: ignore[reportUnknownMemberType] - of any kind of stream

"""The engine process's events as lines of JSON, in the same form as the worker's. Knows no event."""

from __future__ import annotations

import json
import logging
import sys

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """A record's time, level, event and fields; of a library's no text, for that may hold content."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. An exception is told by its type alone."""
        ours = record.name.split(".")[0] == "sparkle"
        line: dict[str, object] = {
            "time_s": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.msg if ours else "library_event",
            "logger": record.name,
        }
        if ours:
            line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, default=str)


def log_to_stderr() -> None:
    """From now on the process's events go to stderr, libraries' from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sparkle").setLevel(logging.INFO)

"""One JSON line an event to stderr: a constant name, ids and counts. Keeps out what could hold content.

Our own events carry only what their call sites put in `extra`. Of a library's line only the logger, the
level and an error's type are told: its text may quote anything.
"""

from __future__ import annotations

import json
import logging
import sys

OURS = "sparkle"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        ours = record.name.split(".")[0] == OURS
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


def log_to_stderr(level: int) -> None:
    """From now on the process's events go to stderr, ours from `level` on, libraries' from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel(level)

"""A line of the log has the event, the ids and the counts that were given, and no library's words."""

from __future__ import annotations

import json
import logging
import sys

from sparkle.workers.logs import EventFormatter


def line_of(record: logging.LogRecord) -> dict[str, object]:
    text = EventFormatter().format(record)
    assert "\n" not in text
    fields: dict[str, object] = json.loads(text)
    return fields


def record_of(logger: str, message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger(logger).makeRecord(
        logger, logging.WARNING, __file__, 1, message, (), None, extra=extra
    )


def test_our_event_has_what_its_call_site_gave() -> None:
    line = line_of(record_of("sparkle.workers.job_run", "job_done", job="j-1", completion_tokens=3))
    assert line.pop("time_s")
    assert line == {
        "level": "warning",
        "event": "job_done",
        "logger": "sparkle.workers.job_run",
        "job": "j-1",
        "completion_tokens": 3,
    }


def test_a_librarys_words_stay_out() -> None:
    line = line_of(record_of("asyncio", "Task exception: SECRET", SECRET="SECRET"))
    assert (line["event"], line["logger"]) == ("library_event", "asyncio")
    assert "SECRET" not in json.dumps(line)


def test_of_an_exception_only_the_type_is_told() -> None:
    record = record_of("sparkle.workers.job_run", "job_fault")
    try:
        raise ValueError("SECRET")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = line_of(record)
    assert line["error"] == "ValueError"
    assert "SECRET" not in json.dumps(line)

"""Errors and log records show kinds, places, ids and numbers, never values."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sparkle.errors import EngineError
from sparkle.quiet.failures import kind_of, place_of
from sparkle.quiet.logs import EventFormatter, LogLevel


def raised(error: Exception) -> Exception:
    def inner(secret: str) -> None:
        raise error

    try:
        inner("the secret")
    except type(error) as caught:
        return caught
    raise AssertionError("nothing was raised")


def test_an_error_of_ours_is_told_in_full_and_a_foreign_one_by_its_type() -> None:
    assert kind_of(EngineError("needs 3 pages")) == "EngineError: needs 3 pages"
    assert kind_of(KeyError("the secret")) == "KeyError"


def test_a_place_is_files_lines_and_functions_innermost_first() -> None:
    places = place_of(raised(KeyError("the secret"))).split(" < ")
    file = Path(__file__).name
    assert [(place.split(":")[0], place.split()[-1]) for place in places] == [
        (file, "inner"),
        (file, "raised"),
    ]


def test_a_deep_place_is_cut() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise KeyError
        deep(levels - 1)

    with pytest.raises(KeyError) as caught:
        deep(50)
    assert place_of(caught.value).count(" < ") == 11


def line(record: dict[str, object]) -> dict[str, object]:
    fields: dict[str, object] = json.loads(EventFormatter().format(logging.makeLogRecord(record)))
    return fields


def test_an_event_of_ours_is_told_with_its_fields() -> None:
    record: dict[str, object] = {"name": "sparkle.engine.process", "msg": "job_done", "levelname": "INFO"}
    assert line({**record, "created": 0.5, "job": "a", "tokens": 3}) == {
        "time_s": 0.5,
        "level": "info",
        "event": "job_done",
        "logger": "sparkle.engine.process",
        "job": "a",
        "tokens": 3,
    }


def test_of_a_librarys_event_only_its_logger_and_error_are_told() -> None:
    record: dict[str, object] = {"name": "jinja2", "msg": "cannot render the secret", "prompt": "the secret"}
    try:
        raise KeyError("the secret")
    except KeyError:
        record["exc_info"] = sys.exc_info()
    told = line(record)
    assert (told["event"], told["logger"], told["error"]) == ("library_event", "jinja2", "KeyError")
    assert "secret" not in str(told)


@pytest.mark.parametrize("level", LogLevel)
def test_a_level_is_loggings_own(level: LogLevel) -> None:
    assert logging.getLevelName(level.number) == level.value.upper()


def test_sparkle_is_told_from_info_on_and_libraries_from_warnings_on() -> None:
    program = """
import logging
from sparkle.quiet.logs import log_to_stderr
log_to_stderr()
logging.getLogger("sparkle.engine").info("ours")
logging.getLogger("sparkle.engine").debug("too fine")
logging.getLogger("jinja2").info("the secret")
logging.getLogger("jinja2").warning("the secret")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    events = [json.loads(text)["event"] for text in done.stderr.splitlines()]
    assert events == ["ours", "library_event"]
    assert "secret" not in done.stderr
    assert done.stdout == ""

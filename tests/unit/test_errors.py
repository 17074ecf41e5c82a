"""The tree of errors is the one drawn in its docstring; `retryable` is decided per class."""

from __future__ import annotations

import re

import pytest

from sparkle import errors
from sparkle.errors import MOST_LETTERS, CheckpointError, ConfigError, FailureCode, JobFailed, SparkleError


def tree(root: type[SparkleError]) -> list[type[SparkleError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_the_drawing_shows_every_class() -> None:
    drawn = re.findall(r"^[ │├└─]*\s*([A-Z][A-Za-z]+) ", errors.__doc__ or "", flags=re.MULTILINE)
    assert sorted(drawn[1:]) == sorted(found.__name__ for found in tree(SparkleError))


@pytest.mark.parametrize("error", tree(SparkleError), ids=lambda error: error.__name__)
def test_each_says_what_it_means(error: type[SparkleError]) -> None:
    assert error.__doc__
    assert isinstance(error.retryable, bool)


@pytest.mark.parametrize("error", [SparkleError, CheckpointError, ConfigError])
def test_what_a_damaged_file_names_at_any_length_is_told_in_one_line(error: type[SparkleError]) -> None:
    name = "\x1b" * 3_000_000
    told = str(error(f"draft_model /models/x: {name} is a field; leave it out"))
    assert told.isprintable()
    assert len(told) <= 4 * MOST_LETTERS + 3
    assert told.startswith("draft_model /models/x: ")
    assert told.endswith(" is a field; leave it out")
    whole = "x" * MOST_LETTERS
    assert str(error(whole)) == whole


def test_a_failed_job_carries_its_code() -> None:
    error = JobFailed(FailureCode.CANCELLED, "the producer cancelled it", retryable=False)
    assert str(error) == "cancelled: the producer cancelled it"
    assert (error.code, error.retryable) == ("cancelled", False)

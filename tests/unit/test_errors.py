"""The tree of errors is the one drawn in its docstring; `retryable` is decided per class."""

from __future__ import annotations

import re

import pytest

from sparkle import errors
from sparkle.errors import FailureCode, JobFailed, SparkleError


def tree(root: type[SparkleError]) -> list[type[SparkleError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_the_drawing_shows_every_class() -> None:
    drawn = re.findall(r"^[ │├└─]*\s*([A-Z][A-Za-z]+) ", errors.__doc__ or "", flags=re.MULTILINE)
    assert sorted(drawn[1:]) == sorted(found.__name__ for found in tree(SparkleError))


@pytest.mark.parametrize("error", tree(SparkleError), ids=lambda error: error.__name__)
def test_each_says_what_it_means(error: type[SparkleError]) -> None:
    assert error.__doc__
    assert isinstance(error.retryable, bool)


def test_a_failed_job_carries_its_code() -> None:
    error = JobFailed(FailureCode.CANCELLED, "the producer cancelled it", retryable=False)
    assert str(error) == "cancelled: the producer cancelled it"
    assert (error.code, error.retryable) == ("cancelled", False)

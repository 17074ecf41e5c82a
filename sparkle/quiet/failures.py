"""What may be told of an error that came while content was at hand: its kind and place. Shows no values."""

from __future__ import annotations

import traceback
from pathlib import Path

from sparkle.errors import SparkleError

MAX_PLACES = 12


def kind_of(error: BaseException) -> str:
    """The error's type; with its text only where that is ours, for ours never holds content."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, SparkleError) else name


def place_of(error: BaseException) -> str:
    """Where it was raised, innermost first: files, lines and functions, without any source or value."""
    frames = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), lookup_lines=False, capture_locals=False
    )
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
    return " < ".join(places[:MAX_PLACES])

"""What a pass of every bucket takes, from the times of a few. Knows no torch and no clock.

Between the smallest and the largest bucket of a kind the times lie on a line, within 4 % on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkle.engine.buckets import Bucket


def times_ms(buckets: Iterable[Bucket], time_ms: Callable[[Bucket], float]) -> dict[Bucket, float]:
    """Milliseconds of each bucket; `time_ms` times the smallest and the largest of each width and kind."""
    kinds: dict[tuple[int, bool], list[Bucket]] = {}
    for bucket in buckets:
        kinds.setdefault((bucket.width, bucket.guesses), []).append(bucket)
    found: dict[Bucket, float] = {}
    for alike in kinds.values():
        found |= _on_a_line(alike, time_ms)
    return found


def _on_a_line(alike: list[Bucket], time_ms: Callable[[Bucket], float]) -> dict[Bucket, float]:
    least, most = min(alike, key=_sequences), max(alike, key=_sequences)
    least_ms = time_ms(least)
    if least == most:
        return {least: least_ms}
    step_ms = (time_ms(most) - least_ms) / (most.sequences - least.sequences)
    return {bucket: least_ms + (bucket.sequences - least.sequences) * step_ms for bucket in alike}


def _sequences(bucket: Bucket) -> int:
    return bucket.sequences

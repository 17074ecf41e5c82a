"""Requests for tests of who goes first: what they are made of is their length, class, times and place."""

from __future__ import annotations

import math

from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass


def request(
    name: str,
    prompt_tokens: int = 4,
    priority: PriorityClass = PriorityClass.P1,
    *,
    arrival: int = 0,
    arrived_s: float = 0.0,
    deadline_s: float = math.inf,
    max_answer_tokens: int = 2,
) -> Request:
    """One that waits."""
    made = Request(
        id=name,
        prompt=(7,) * prompt_tokens,
        max_answer_tokens=max_answer_tokens,
        stop_tokens=frozenset(),
        priority=priority,
        arrived_s=arrived_s,
        deadline_s=deadline_s,
    )
    made.arrival = arrival
    return made

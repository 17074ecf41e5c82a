"""The soak for some seconds: nothing is left of jobs of every fate. Its memory takes minutes to judge."""

from __future__ import annotations

import pytest

from bench.soak import Held, Memory, Soaked, soak

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("nats_binary")]

FATES = {
    "awaited: length",
    "cancelled: cancelled",
    "conversation: ended",
    "late: deadline_exceeded",
    "streamed: length",
    "too_long: too_long",
    "twice: length",
}
IDLE = Held(tasks=30, files=29, connections=3, subscriptions=12, consumers=5, messages=0, running=0)


async def test_nothing_is_left_of_jobs_of_every_fate() -> None:
    soaked = await soak(4.0, askers=4)
    assert soaked.left == {}
    assert set(soaked.fates) >= FATES
    assert soaked.jobs > 2 * len(FATES)


def test_what_is_left_is_told_by_kind() -> None:
    leaky = Held(tasks=31, files=29, connections=3, subscriptions=14, consumers=5, messages=0, running=1)
    assert Soaked({}, IDLE, leaky, {}).left == {"tasks": 1, "subscriptions": 2, "running": 1}
    assert Soaked({"streamed: length": 2}, IDLE, IDLE, {}).left == {}


def test_growth_is_what_comes_after_the_warm_up() -> None:
    flat, steady = [float(min(size, 50)) for size in range(100)], [float(size) for size in range(100)]
    grown = Memory(client_and_worker=flat, engine=steady, server=[7.0]).growth_mib()
    assert grown == {"client_and_worker": 0.0, "engine": 20.0, "server": 0.0}

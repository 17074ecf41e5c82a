"""One of each fault while jobs run: nothing lost, nothing doubled, every stream as if nothing had happened.

`bench.chaos` does so ten thousand times, with the bundled model; nodes die in test_cluster.py.
"""

from __future__ import annotations

import asyncio

import pytest

from bench import chaos_faults
from bench.chaos import (
    NUM_WORKERS,
    TENANT,
    Load,
    Tally,
    stand_in_answer,
    stand_in_command,
    stand_in_job,
)
from bench.chaos_faults import Faults, Workers
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.schemas import subjects
from tests.conftest import REGION
from tests.nats_cluster import NatsCluster

pytestmark = pytest.mark.acceptance

AT_ONCE = 12
KINDS = (
    *("worker_killed", "engine_killed", "worker_frozen", "worker_told_to_end"),
    *("engine_frozen", "connection_cut"),
)


# several processes start again and again, on a machine that may have other work
@pytest.mark.timeout(300)
async def test_every_stream_is_whole_whatever_dies(
    nats_cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_faults, "FROZEN_S", (3.0, 3.0))
    connection = await Connection.open(ConnectionSettings(url=nats_cluster.url))
    async with (
        Workers(stand_in_command, nats_cluster.url, NUM_WORKERS) as workers,
        Client(connection, ClientSettings(region=REGION, tenant=TENANT)) as client,
    ):
        faults, tally = Faults(workers, nats_cluster, connection, every_s=0.0, seed=1), Tally()
        load = Load(client, stand_in_answer, workers, tally, faults.all_lost_s)
        await connection.subscribe(subjects.usage(REGION, TENANT, "*"), load.take_usage)

        async def some_more() -> None:
            await load.run(map(stand_in_job, range(AT_ONCE)), AT_ONCE, lambda: None)

        # the first answers come once a worker is there
        await some_more()
        for kind in KINDS:
            asking = asyncio.create_task(some_more())
            await faults.one(kind)
            await asking
        assert faults.done == dict.fromkeys(KINDS, 1)
        assert tally.jobs == AT_ONCE * (1 + len(KINDS))
        assert (tally.lost, tally.changed_streams, tally.doubled) == (0, 0, 0)
        # what was written of them before was not written again
        assert tally.attempts > 0

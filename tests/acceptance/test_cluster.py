"""A cluster under load that loses a node, its leader and then all of itself: every answer is whole, once."""

from __future__ import annotations

import asyncio

import pytest

from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.schemas.job import Job
from tests.conftest import REGION, Eventually
from tests.engine_stand_in import token_of
from tests.nats_cluster import NatsCluster
from tests.worker_processes import stand_in, worker_process

# a cluster takes its time, on a busy machine more of it
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

OPEN_AT_ONCE = 12
TOKENS = 12


class Load:
    """Jobs one after the other, so many at once, until told to stop; each answer is checked as it comes."""

    def __init__(self, client: Client) -> None:
        self.answered = 0
        self._client = client
        self._stop = asyncio.Event()
        self._askers = [asyncio.create_task(self._ask()) for _ in range(OPEN_AT_ONCE)]

    async def _ask(self) -> None:
        while not self._stop.is_set():
            handle = await self._client.submit(Job(prompt="pace_ms=20", max_tokens=TOKENS))
            tokens = [token for chunk in [chunk async for chunk in handle] for token in chunk.tokens]
            wanted = [token_of(handle.job_id, index) for index in range(TOKENS)]
            assert tokens == (await handle.result()).tokens == wanted
            self.answered += 1

    async def until_more(self, eventually: Eventually, count: int = 2 * OPEN_AT_ONCE) -> None:
        """Until so many more are answered: all that were open have gone by, and others have come."""
        wanted = self.answered + count
        await eventually(lambda: self.answered >= wanted or any(asker.done() for asker in self._askers))

    async def end(self) -> None:
        """Ask no more; returns when every job has its answer. Raises what went wrong with any."""
        self._stop.set()
        await asyncio.gather(*self._askers)


async def test_every_answer_is_whole_whatever_is_lost(
    nats_cluster: NatsCluster, patiently: Eventually
) -> None:
    settings = ClientSettings(nats=nats_cluster.url, region=REGION, tenant="acme")
    async with (
        worker_process(*stand_in(nats_cluster, "--slots", "8")) as first,
        worker_process(*stand_in(nats_cluster, "--slots", "8")) as second,
        await Client.open(settings) as client,
    ):
        load = Load(client)
        await load.until_more(patiently)
        leader = await nats_cluster.leader()
        follower = next(node for node in nats_cluster.nodes if node is not leader)
        await follower.kill()
        await load.until_more(patiently)
        await follower.start()
        await nats_cluster.until_whole()
        await leader.kill()
        await load.until_more(patiently)
        await nats_cluster.kill_all()
        await nats_cluster.start_all()
        await load.until_more(patiently)
        await load.end()
        assert load.answered >= 8 * OPEN_AT_ONCE
        for worker in (first, second):
            assert worker.process.returncode is None
            assert {"job_fault", "worker_ended"}.isdisjoint(worker.events())

"""Conversations over three worker processes, killed and started again: who lives keeps its conversations."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from tests.conftest import Eventually
from tests.worker_at_work import REGION, TENANT, Producer, make_job, tokens_of
from tests.worker_processes import WorkerProcess, stand_in, worker_process

pytestmark = pytest.mark.acceptance

NAMES = ("w-1", "w-2", "w-3")
CONVERSATIONS = 200
AT_ONCE = 16
KILLS = 6
ACK_WAIT_S = 4.0
# a home with room answers at once; one that is killed before it answers is waited for all this time
WAIT_MS = 2000.0


class Fleet:
    """Three named worker processes."""

    def __init__(self, server: LocalServer, stack: AsyncExitStack) -> None:
        self.kills: Counter[str] = Counter()
        self._server = server
        self._stack = stack
        self._running: dict[str, WorkerProcess] = {}

    async def start(self, name: str) -> None:
        """A worker of this name with room for all: who lives is never busy."""
        flags = ("--name", name, "--slots", str(AT_ONCE), "--follow-up-wait-ms", str(WAIT_MS))
        process = worker_process(*stand_in(self._server, *flags))
        self._running[name] = await self._stack.enter_async_context(process)

    async def replace(self, name: str) -> None:
        """Kill a worker where it stands, and start it again under its name."""
        self.kills[name] += 1
        self._running[name].process.kill()
        await self._running[name].process.wait()
        await self.start(name)


@pytest_asyncio.fixture
async def fleet(connection: Connection, nats_server: LocalServer) -> AsyncGenerator[Fleet]:
    await topology.apply(connection, TopologySettings(regions=REGION, ack_wait_s=ACK_WAIT_S))
    async with AsyncExitStack() as stack:
        started = Fleet(nats_server, stack)
        await asyncio.gather(*map(started.start, NAMES))
        yield started


async def test_under_kills_each_job_of_each_conversation_ends_once(
    fleet: Fleet, connection: Connection, nats_server: LocalServer, eventually: Eventually
) -> None:
    draw = random.Random(5)
    at_once = asyncio.Semaphore(AT_ONCE)
    turns = [draw.randint(1, 4) for _ in range(CONVERSATIONS)]
    answered = 0
    homes: Counter[str] = Counter()

    async def talk(client: Client, conversation: str, num_turns: int) -> None:
        nonlocal answered
        home, kills_then = "", Counter[str]()
        for _ in range(num_turns):
            job = make_job(f"pace_ms={draw.randint(0, 8)}", max_tokens=4, conversation=conversation)
            kills_before = fleet.kills.copy()
            result = await (await client.submit(job)).result()
            assert result.tokens == tokens_of(job)
            if home:
                homes["same" if result.worker == home else "moved"] += 1
                # who lives keeps its conversations
                assert result.worker == home or fleet.kills[home] > kills_then[home]
            # it may have been killed since it answered
            home, kills_then = result.worker, kills_before
            answered += 1

    async def talk_in_turn(client: Client, conversation: str, num_turns: int) -> None:
        async with at_once:
            await talk(client, conversation, num_turns)

    async def kill_now_and_then() -> None:
        for number in range(1, KILLS + 1):
            due = number * sum(turns) // (KILLS + 1)
            while answered < due:  # noqa: ASYNC110 - a plain count
                await asyncio.sleep(0.005)
            await fleet.replace(draw.choice(NAMES))

    settings = ClientSettings(nats=nats_server.url, region=REGION, tenant=TENANT)
    async with await Client.open(settings) as client, asyncio.timeout(100):
        talks = (talk_in_turn(client, f"c-{number}", num) for number, num in enumerate(turns))
        await asyncio.gather(kill_now_and_then(), *talks)
    await Producer(connection).until_empty()
    results = (await ask(connection, f"STREAM.INFO.{subjects.RESULTS_STREAM}")).table("state")
    assert (results["messages"], results["last_seq"]) == (sum(turns), sum(turns))
    assert fleet.kills.total() == KILLS
    assert homes["same"] > homes["moved"]

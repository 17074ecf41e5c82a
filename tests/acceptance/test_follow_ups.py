"""Conversations over three worker processes, killed and started again: who lives keeps its conversations."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio

from sparkle.errors import PublishUncertain, TopologyMissing
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Result
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
    """Named worker processes."""

    def __init__(self, server: LocalServer, stack: AsyncExitStack) -> None:
        self.kills: Counter[str] = Counter()
        self._server = server
        self._stack = stack
        self._running: dict[str, WorkerProcess] = {}

    async def start(self, name: str, *, slots: int = AT_ONCE, wait_ms: float = WAIT_MS) -> None:
        """A worker of this name; with room for all, who lives is never busy."""
        flags = ("--name", name, "--slots", str(slots), "--follow-up-wait-ms", str(wait_ms))
        process = worker_process(*stand_in(self._server, *flags))
        self._running[name] = await self._stack.enter_async_context(process)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """As a machine that freezes, thaws or dies."""
        self._running[name].process.send_signal(number)

    async def ended(self, name: str) -> None:
        """Wait until the process is gone."""
        await self._running[name].process.wait()

    async def replace(self, name: str) -> None:
        """Kill a worker where it stands, and start it again under its name."""
        self.kills[name] += 1
        self.send_signal(name, signal.SIGKILL)
        await self.ended(name)
        await self.start(name)


@pytest_asyncio.fixture
async def fleet(connection: Connection, nats_server: LocalServer) -> AsyncGenerator[Fleet]:
    await topology.apply(connection, TopologySettings(regions=REGION, ack_wait_s=ACK_WAIT_S))
    async with AsyncExitStack() as stack:
        yield Fleet(nats_server, stack)


@pytest_asyncio.fixture
async def client(fleet: Fleet, nats_server: LocalServer) -> AsyncGenerator[Client]:
    async with await Client.open(
        ClientSettings(nats=nats_server.url, region=REGION, tenant=TENANT)
    ) as opened:
        yield opened


async def answer(client: Client, conversation: str) -> Result:
    job = make_job(max_tokens=4, conversation=conversation)
    result = await (await client.submit(job)).result()
    assert result.tokens == tokens_of(job)
    return result


async def until_nobody_listens(connection: Connection, subject: str) -> None:
    """Until the server has seen that whoever listened is gone."""
    with suppress(TopologyMissing):
        while True:
            # one that is there takes no empty offer, and does not answer
            with suppress(PublishUncertain):
                await connection.request(subject, timeout_s=0.05)


async def test_a_killed_home_is_not_waited_for(fleet: Fleet, connection: Connection, client: Client) -> None:
    # longer than a test may take
    await asyncio.gather(*(fleet.start(name, slots=1, wait_ms=60_000) for name in NAMES))
    home = (await answer(client, "c")).worker
    fleet.send_signal(home, signal.SIGKILL)
    await fleet.ended(home)
    await until_nobody_listens(connection, subjects.offer(REGION, home))
    assert (await answer(client, "c")).worker != home


async def test_a_frozen_home_is_waited_for_like_a_busy_one(fleet: Fleet, client: Client) -> None:
    await asyncio.gather(*(fleet.start(name, slots=1, wait_ms=200) for name in NAMES))
    home = (await answer(client, "c")).worker
    fleet.send_signal(home, signal.SIGSTOP)
    taken_over = await answer(client, "c")
    assert taken_over.worker != home
    assert taken_over.usage.queue_s >= 0.199
    # thawed, it says yes to an offer of long ago, gets nothing, and goes on
    fleet.send_signal(home, signal.SIGCONT)
    assert (await answer(client, "c")).worker == taken_over.worker


async def test_under_kills_each_job_of_each_conversation_ends_once(
    fleet: Fleet, connection: Connection, client: Client
) -> None:
    await asyncio.gather(*map(fleet.start, NAMES))
    draw = random.Random(5)
    at_once = asyncio.Semaphore(AT_ONCE)
    turns = [draw.randint(1, 4) for _ in range(CONVERSATIONS)]
    answered = 0
    homes: Counter[str] = Counter()

    async def talk(conversation: str, num_turns: int) -> None:
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

    async def talk_in_turn(conversation: str, num_turns: int) -> None:
        async with at_once:
            await talk(conversation, num_turns)

    async def kill_now_and_then() -> None:
        for number in range(1, KILLS + 1):
            due = number * sum(turns) // (KILLS + 1)
            while answered < due:  # noqa: ASYNC110 - a plain count
                await asyncio.sleep(0.005)
            await fleet.replace(draw.choice(NAMES))

    async with asyncio.timeout(100):
        talks = (talk_in_turn(f"c-{number}", num) for number, num in enumerate(turns))
        await asyncio.gather(kill_now_and_then(), *talks)
    await Producer(connection).until_empty()
    results = (await ask(connection, f"STREAM.INFO.{subjects.RESULTS_STREAM}")).table("state")
    assert (results["messages"], results["last_seq"]) == (sum(turns), sum(turns))
    assert fleet.kills.total() == KILLS
    assert homes["same"] > homes["moved"]

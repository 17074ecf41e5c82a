"""Follow-ups find the worker that answered before: three workers with stand-in engines on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.answer import Result
from sparkle.schemas.job import Job
from tests.conftest import Eventually
from tests.engine_stand_in import StandInEngine
from tests.worker_at_work import REGION, TENANT, WAIT_S, AtWork, at_work, make_job, tokens_of

NAMES = ("w-1", "w-2", "w-3")
# longer than a test may take: what ends in time has not waited for it
FOR_EVER_MS = 60_000.0
USUAL_MS = 200.0


def turn(conversation: str, script: str = "hello", max_tokens: int = 3) -> Job:
    return make_job(script, max_tokens=max_tokens, conversation=conversation)


@dataclass
class Site:
    """Three workers by their names, and a client."""

    client: Client
    workers: dict[str, AtWork]
    url: str

    async def answer(self, job: Job) -> Result:
        """The job's answer, whole and right."""
        async with asyncio.timeout(WAIT_S):
            result = await (await self.client.submit(job)).result()
        assert result.tokens == tokens_of(job)
        return result

    async def fill(self, conversation: str) -> tuple[str, Handle]:
        """A conversation's home with no slot free: its name, and the job that holds it up."""
        home = (await self.answer(turn(conversation))).worker
        handle = await self.client.submit(turn(conversation, "pace_ms=20", max_tokens=4000))
        async with asyncio.timeout(WAIT_S):
            assert (await anext(handle)).worker == home
        return home, handle


OpenSite = Callable[..., Awaitable[Site]]


@asynccontextmanager
async def worker(url: str, name: str, slots: int, wait_ms: float) -> AsyncGenerator[AtWork]:
    engine = StandInEngine(slots=slots)
    async with at_work(url, engine=engine, name=name, follow_up_wait_ms=wait_ms) as running:
        yield running


@pytest_asyncio.fixture
async def open_site(
    connection: Connection, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> AsyncGenerator[OpenSite]:
    """Starts the workers and a client."""
    caplog.set_level("INFO", "sparkle.queue.handover")
    async with AsyncExitStack() as stack:

        async def start(*, slots: int, wait_ms: float) -> Site:
            url = nats_server.url
            starting = [worker(url, name, slots, wait_ms) for name in NAMES]
            running = await asyncio.gather(*map(stack.enter_async_context, starting))
            settings = ClientSettings(nats=url, region=REGION, tenant=TENANT)
            client = await stack.enter_async_context(await Client.open(settings))
            return Site(client, dict(zip(NAMES, running, strict=True)), url)

        yield start


@pytest.fixture
def ways(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """How each follow-up so far came to where it ran."""

    def read() -> list[str]:
        return [vars(record)["way"] for record in caplog.records if record.message == "follow_up"]

    return read


async def test_every_follow_up_runs_where_its_conversation_is(
    open_site: OpenSite, ways: Callable[[], list[str]]
) -> None:
    # no more at once than each has slots: all can be at one home, and none waits for another's end
    site = await open_site(slots=4, wait_ms=FOR_EVER_MS)

    async def talk(conversation: str) -> set[str]:
        return {(await site.answer(turn(conversation))).worker for _ in range(16)}

    homes = await asyncio.gather(*(talk(f"c-{number}") for number in range(4)))
    assert [len(home) for home in homes] == [1] * 4
    assert len(ways()) == 4 * 15
    # or the first to pull was always the right one, and nothing was handed over
    assert set(ways()) == {"home", "handed_over"}


async def test_a_cancelled_answer_counts_as_one(open_site: OpenSite) -> None:
    site = await open_site(slots=4, wait_ms=FOR_EVER_MS)
    for number in range(6):
        begun = await site.client.submit(turn(f"c-{number}", "pace_ms=5", max_tokens=4000))
        async with asyncio.timeout(WAIT_S):
            home = (await anext(begun)).worker
        # the next question does not wait for the end, and another not for the cancel
        beside = await site.answer(turn(f"c-{number}"))
        await begun.cancel()
        after = await site.answer(turn(f"c-{number}"))
        assert (beside.worker, after.worker) == (home, home)


async def test_a_job_of_no_conversation_goes_to_anybody(
    open_site: OpenSite, ways: Callable[[], list[str]]
) -> None:
    site = await open_site(slots=1, wait_ms=FOR_EVER_MS)
    for _ in range(3):
        await site.answer(make_job())
    assert ways() == []


async def test_a_busy_home_is_waited_for_200_ms(open_site: OpenSite, ways: Callable[[], list[str]]) -> None:
    site = await open_site(slots=1, wait_ms=USUAL_MS)
    home, holding_up = await site.fill("c")
    taken_over = await site.answer(turn("c"))
    assert taken_over.worker != home
    assert ways()[-1] == "busy"
    # from when the queue stored it to its lease; offers wait whole milliseconds
    assert 0.199 <= taken_over.usage.queue_s < 2.0
    # from now on the conversation is there, and nothing waits
    again = await site.answer(turn("c"))
    assert again.worker == taken_over.worker
    await holding_up.cancel()


async def test_full_workers_that_wait_for_one_another_go_on_all_the_same(
    open_site: OpenSite, ways: Callable[[], list[str]]
) -> None:
    site = await open_site(slots=1, wait_ms=USUAL_MS)
    homes: dict[str, list[str]] = {name: [] for name in NAMES}
    number = 0
    while min(map(len, homes.values())) < 2:
        number += 1
        homes[(await site.answer(turn(f"c-{number}"))).worker].append(f"c-{number}")
    begun = len(ways())
    follow_ups = [turn(one, "pace_ms=2") for home in homes.values() for one in home[:2]]
    again = [turn(job.conversation or "", "pace_ms=2") for job in follow_ups]
    # each is answered whole, or this takes too long
    await asyncio.gather(*map(site.answer, [*follow_ups, *again]))
    found = ways()[begun:]
    assert len(found) >= len([*follow_ups, *again])
    assert set(found) <= {"home", "handed_over", "busy"}


async def test_a_slot_that_becomes_free_in_time_is_the_follow_ups(
    open_site: OpenSite, ways: Callable[[], list[str]]
) -> None:
    site = await open_site(slots=1, wait_ms=FOR_EVER_MS)
    home, holding_up = await site.fill("c")
    handle = await site.client.submit(turn("c"))
    await holding_up.cancel()
    async with asyncio.timeout(WAIT_S):
        assert (await handle.result()).worker == home
    assert ways()[-1] in ("home", "handed_over")


async def test_a_home_that_has_ended_is_not_waited_for(
    open_site: OpenSite, ways: Callable[[], list[str]]
) -> None:
    site = await open_site(slots=1, wait_ms=FOR_EVER_MS)
    home = (await site.answer(turn("c"))).worker
    ended = site.workers[home]
    ended.life.interrupt()
    await ended.end()
    taken_over = await site.answer(turn("c"))
    assert taken_over.worker != home
    assert ways() == ["gone"]


async def test_a_home_that_drains_is_not_waited_for(
    open_site: OpenSite, ways: Callable[[], list[str]], eventually: Eventually
) -> None:
    site = await open_site(slots=1, wait_ms=FOR_EVER_MS)
    home, holding_up = await site.fill("c")
    handle = await site.client.submit(turn("c"))
    # it ends what it runs first
    site.workers[home].life.interrupt()
    async with asyncio.timeout(WAIT_S):
        assert (await handle.result()).worker != home
    assert ways()[-1] in ("busy", "gone")
    assert not holding_up.done
    await holding_up.cancel()


async def test_a_home_that_was_started_again_takes_its_follow_ups(open_site: OpenSite) -> None:
    site = await open_site(slots=1, wait_ms=FOR_EVER_MS)
    home = (await site.answer(turn("c"))).worker
    ended = site.workers[home]
    ended.life.interrupt()
    await ended.end()
    async with worker(site.url, home, 1, FOR_EVER_MS):
        assert (await site.answer(turn("c"))).worker == home

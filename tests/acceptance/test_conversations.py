"""A conversation through the whole service: its next job goes on from its state, until it is ended."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import Device, EngineSettings, default_model
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.answer import Result
from sparkle.schemas.job import Job, Sampling
from tests.worker_at_work import REGION, TENANT, AtWork, at_work

pytestmark = pytest.mark.acceptance

PROMPT_TOKENS = 200
ANSWER_TOKENS = 8
FURTHER_TOKENS = 20
FOR_EVER_MS = 60_000.0


def worker(url: str, name: str) -> AbstractAsyncContextManager[AtWork]:
    engine = EngineProcess(default_model(), EngineSettings(device=Device.CPU, slots=2, threads=1))
    return at_work(url, engine=engine, name=name, follow_up_wait_ms=FOR_EVER_MS)


async def answer(client: Client, tokens: list[int], conversation: str | None) -> Result:
    job = Job(
        prompt_tokens=tokens,
        max_tokens=ANSWER_TOKENS,
        sampling=Sampling(temperature=0.0),
        conversation=conversation,
    )
    async with asyncio.timeout(60):
        return await (await client.submit(job)).result()


async def test_a_follow_up_reads_only_what_is_new_until_its_conversation_is_ended(
    connection: Connection, nats_server: LocalServer
) -> None:
    def some_tokens(count: int) -> list[int]:
        return [random.randrange(300, 8000) for _ in range(count)]

    async with AsyncExitStack() as stack:
        workers = (worker(nats_server.url, name) for name in ("w-1", "w-2"))
        await asyncio.gather(*map(stack.enter_async_context, workers))
        settings = ClientSettings(nats=nats_server.url, region=REGION, tenant=TENANT)
        client = await stack.enter_async_context(await Client.open(settings))
        tokens = some_tokens(PROMPT_TOKENS)
        last = await answer(client, tokens, "c-1")
        assert last.usage.cached_tokens == 0
        home = last.worker
        for _ in range(3):
            seen = len(tokens)
            tokens = [*tokens, *last.tokens, *some_tokens(FURTHER_TOKENS)]
            last = await answer(client, tokens, "c-1")
            assert last.worker == home
            # the prompt before at least, and all but the last token of its answer at most
            assert seen <= last.usage.cached_tokens < seen + ANSWER_TOKENS
        await client.end_conversation("c-1")
        again = await answer(client, tokens, "c-1")
        assert again.usage.cached_tokens == 0
        assert again.tokens == last.tokens

"""Real keys and allowances at real gateways over HTTP: 401, 403, 404, 429, and what the records say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from sparkle.errors import TopologyMissing
from sparkle.producers.gateway.serve import keyed_access
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.metering import open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.queue import usage_streams
from sparkle.queue.connection import Connection
from sparkle.queue.key_values import KeyValues
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from tests.gateway_at_work import GatewayAtWork, gateway_at_work
from tests.worker_at_work import at_work

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST = 50


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings(queue_url: str) -> MeteringSettings:
    """Where METER of the file's server is."""
    return MeteringSettings(nats=queue_url.replace("nats://", "nats://meter:meter@"), settle_s=0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def meter(settings: MeteringSettings) -> AsyncGenerator[Connection]:
    """A connection to METER, where its streams are declared."""
    opened = await Connection.open(settings.connection("test"))
    await usage_streams.declare(opened, UsageSettings())
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def metered(queue_url: str, connection: Connection, meter: Connection) -> AsyncGenerator[None]:
    """A worker that stores a usage record before each end."""
    async with at_work(queue_url, metered=True):
        yield


@asynccontextmanager
async def keyed_gateway(queue_url: str, settings: MeteringSettings) -> AsyncGenerator[GatewayAtWork]:
    """A gateway with a connection to METER of its own."""
    meter = await Connection.open(settings.connection("test-gateway"))
    try:
        async with open_metering(meter, settings) as access, gateway_at_work(queue_url, access=access) as one:
            yield one
    finally:
        await meter.close()


async def add(meter: Connection, name: str, **fields: object) -> str:
    tenant = Tenant.model_validate({"name": name, "region": "local", **fields})
    return await TenantBook(KeyValues(meter, BUCKET)).add(tenant, now_ms=0)


async def used_tokens(meter: Connection, tenant: str) -> tuple[int, int]:
    """Jobs and tokens of this month, by the records."""
    account = await AccountFile(meter, KeyValues(meter, BUCKET), tenant).count()
    months = account.months.values()
    return sum(month.jobs for month in months), sum(month.tokens for month in months)


async def ask(client: AsyncOpenAI, tokens: int) -> int:
    """The tokens of an answer that was let in."""
    answer = await client.completions.create(model="stand-in", prompt="x", max_tokens=tokens)
    assert answer.usage is not None
    return answer.usage.total_tokens


async def client_answer(client: AsyncOpenAI, tokens: int) -> int | openai.RateLimitError:
    """The tokens of the answer, or why there is none yet."""
    try:
        return await ask(client, tokens)
    except openai.RateLimitError as refusal:
        return refusal


async def test_keys_open_their_own_doors(
    queue_url: str, settings: MeteringSettings, meter: Connection, metered: None
) -> None:
    acme, other = await add(meter, "doors-1", models=("stand-in",)), await add(meter, "doors-2")
    abroad = await add(meter, "doors-3", region="us")
    async with keyed_gateway(queue_url, settings) as gateway:
        for wrong in ("", "x", acme[:-1], acme.replace("sk-sparkle-", "sk-")):
            async with gateway.client(wrong or "none") as client:
                with pytest.raises(openai.AuthenticationError):
                    await ask(client, 1)
        async with gateway.client(abroad) as client:
            with pytest.raises(openai.PermissionDeniedError, match="region us"):
                await ask(client, 1)
        async with gateway.client(acme) as client, gateway.client(other) as stranger:
            assert await ask(client, 3) >= 3
            with pytest.raises(openai.NotFoundError, match="`gpt-9`"):
                await client.completions.create(model="gpt-9", prompt="x")
            file = await client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
            for attempt in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await attempt(file.id)
            assert (await client.files.retrieve(file.id)).id == file.id


async def test_two_gateways_count_one_allowance_and_go_one_job_over_at_most(
    queue_url: str, settings: MeteringSettings, meter: Connection, metered: None
) -> None:
    allowance = 2_000
    key = await add(meter, "shared", allowance_tokens=allowance)
    refusals = list[openai.RateLimitError]()

    async def spend(client: AsyncOpenAI) -> int:
        """Ask until the allowance is spent."""
        used = 0
        while True:
            answer = await client_answer(client, MOST)
            if isinstance(answer, int):
                used += answer
            elif answer.code == "insufficient_quota":
                refusals.append(answer)
                return used
            else:
                await asyncio.sleep(0.01)

    async with (
        keyed_gateway(queue_url, settings) as one,
        keyed_gateway(queue_url, settings) as two,
        one.client(key) as first,
        two.client(key) as second,
    ):
        spent = await asyncio.gather(*(spend(client) for client in (first, second) * 8))
    assert len(refusals) == 16
    for refusal in refusals:
        assert "begins anew on" in refusal.message
        assert int(refusal.response.headers["retry-after"]) > 0
    jobs, tokens = await used_tokens(meter, "shared")
    # what the clients were told they used is what the records say
    assert sum(spent) == tokens
    assert allowance <= tokens <= allowance + MOST + 1
    assert jobs == sum(spent) // (MOST + 1)


async def test_an_answer_that_nobody_waits_for_is_counted_and_gives_its_room_back(
    queue_url: str, settings: MeteringSettings, meter: Connection, metered: None
) -> None:
    key = await add(meter, "left", allowance_tokens=1_000)
    async with keyed_gateway(queue_url, settings) as gateway, gateway.client(key) as client:
        stream = await client.completions.create(
            model="stand-in", prompt="pace_ms=5", max_tokens=1_000, stream=True
        )
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError, match="running jobs may use them up"):
            await ask(client, 1)
        await stream.close()
        async with asyncio.timeout(10.0):
            while not isinstance(await client_answer(client, 1), int):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
    jobs, tokens = await used_tokens(meter, "left")
    assert jobs == 2
    assert 2 < tokens < 1_000


async def test_no_key_and_no_hash_is_logged_or_measured(
    queue_url: str,
    settings: MeteringSettings,
    meter: Connection,
    metered: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = await add(meter, "quiet")
    kept = (await TenantBook(KeyValues(meter, BUCKET)).get("quiet")).keys[0]
    secret = key.split("-", 3)[3]
    with caplog.at_level(logging.DEBUG):
        async with keyed_gateway(queue_url, settings) as gateway:
            async with gateway.client(key + "x") as client:
                with pytest.raises(openai.AuthenticationError) as refusal:
                    await ask(client, 1)
            async with gateway.client(key) as client:
                await ask(client, 1)
                metrics = await client._client.get(f"{gateway.url}/metrics")  # pyright: ignore[reportPrivateUsage]
    ours = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore", "openai"))]
    said = repr([vars(one) for one in ours]) + metrics.text + refusal.value.message
    assert "sparkle_gateway" in said
    assert secret not in said
    assert kept.sha256 not in said


async def test_a_gateway_in_another_account_says_where_its_address_is_given(
    queue_url: str, connection: Connection
) -> None:
    with pytest.raises(TopologyMissing, match=r"keys and allowances: .*--meter-nats"):
        async with keyed_access(MeteringSettings(nats=queue_url)):
            pass

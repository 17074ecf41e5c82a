"""Who may ask: keys, regions, models, allowances; and that every reservation ends, once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from sparkle.errors import AllowanceSpent, KeyRefused, NotConnected, RateLimited
from sparkle.producers.gateway.access import Principal, Reservation
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.gateway_at_work import REGION, TENANT, GatewayAtWork, gateway_at_work
from tests.worker_at_work import AtWork

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: ChatCompletionMessageParam = {"role": "user", "content": "x" * 5_000_000}

PRINCIPALS = {
    "key-acme": Principal("acme", "local"),
    "key-other": Principal("other", "local"),
    "key-us": Principal("acme", "us"),
    "key-one-model": Principal("acme", "local", ("stand-in",)),
    "key-other-model": Principal("acme", "local", ("gpt-9",)),
}


class Ledger:
    """An access that writes down what it is told."""

    def __init__(self) -> None:
        self.reserved: dict[str, int] = {}
        self.ends: list[tuple[str, bool]] = []
        self.error: Exception | None = None

    async def authenticate(self, key: str | None) -> Principal:
        if key not in PRINCIPALS:
            raise KeyRefused("the key is missing or not valid")
        return PRINCIPALS[key]

    async def reserve(self, principal: Principal, jobs: Mapping[str, int]) -> Reservation:
        if self.error is not None:
            raise self.error
        self.reserved |= jobs
        return self

    async def ended(self, job: str, *, accepted: bool) -> None:
        self.ends.append((job, accepted))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest_asyncio.fixture(loop_scope="module")
async def guarded(queue_url: str, worker: AtWork, ledger: Ledger) -> AsyncGenerator[GatewayAtWork]:
    async with gateway_at_work(queue_url, access=ledger, accept_timeout_s=5.0) as gateway:
        yield gateway


async def test_a_missing_or_wrong_key_is_a_401(guarded: GatewayAtWork) -> None:
    async with guarded.client("wrong") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
        assert (refused.value.code, refused.value.type) == ("invalid_api_key", "authentication_error")
        assert "wrong" not in refused.value.message.replace("wrong or", "")
        with pytest.raises(openai.AuthenticationError):
            await client.files.retrieve("file-1")


async def test_a_key_of_another_region_is_refused(guarded: GatewayAtWork) -> None:
    async with guarded.client("key-us") as client:
        with pytest.raises(openai.PermissionDeniedError, match="for region us, this gateway for local"):
            await client.completions.create(model="stand-in", prompt="x")


async def test_a_key_has_its_models(guarded: GatewayAtWork) -> None:
    async with guarded.client("key-one-model") as client:
        answer = await client.completions.create(
            model="stand-in", prompt="x", max_tokens=1, extra_body={"model": None}
        )
        assert answer.model == "stand-in"
    async with guarded.client("key-other-model") as client:
        with pytest.raises(openai.NotFoundError, match="`stand-in` is not served for this key; served: none"):
            await client.completions.create(model="stand-in", prompt="x")
        with pytest.raises(openai.NotFoundError, match="`gpt-9`"):
            await client.completions.create(model="gpt-9", prompt="x")
        assert [model.id async for model in client.models.list()] == []


async def test_every_job_is_reserved_before_and_ended_after(
    guarded: GatewayAtWork, ledger: Ledger, eventually: Eventually
) -> None:
    async with guarded.client("key-acme") as client:
        answer = await client.completions.create(model="stand-in", prompt="one two", max_tokens=5, n=2)
        assert len(answer.choices) == 2
        await eventually(lambda: len(ledger.ends) == 2)
        assert dict(ledger.ends) == dict.fromkeys(ledger.reserved, True)
        assert all(tokens >= 5 + 2 for tokens in ledger.reserved.values())
        ledger.ends.clear()
        stream = await client.completions.create(
            model="stand-in", prompt="pace_ms=5", max_tokens=1000, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
        await eventually(lambda: ledger.ends)
        assert [accepted for _, accepted in ledger.ends] == [True]


async def test_a_job_that_no_queue_holds_gives_everything_back(
    guarded: GatewayAtWork, ledger: Ledger, eventually: Eventually
) -> None:
    async with guarded.client("key-acme") as client:
        with pytest.raises(openai.APIStatusError) as refused:
            # together more than a message may have
            await client.chat.completions.create(model="stand-in", messages=[LONG, LONG])
        assert refused.value.status_code == 413
        assert len(ledger.reserved) == 1
        assert len(ledger.ends) == len(ledger.reserved)
        assert all(not accepted for _, accepted in ledger.ends)


async def test_a_spent_allowance_is_a_429_with_its_date(guarded: GatewayAtWork, ledger: Ledger) -> None:
    ledger.error = AllowanceSpent(
        "the allowance is spent; there is a new one on 2026-12-01", resets_ms=int((time.time() + 5000) * 1000)
    )
    async with guarded.client("key-acme") as client:
        with pytest.raises(openai.RateLimitError, match="2026-12-01") as refused:
            await client.completions.create(model="stand-in", prompt="x")
    assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
    assert 4000 < int(refused.value.response.headers["retry-after"]) <= 5001
    assert refused.value.response.headers["x-should-retry"] == "false"


async def test_a_rate_limit_is_a_429_that_says_when(guarded: GatewayAtWork, ledger: Ledger) -> None:
    ledger.error = RateLimited("20 requests a minute at most", retry_after_s=2.5)
    async with guarded.client("key-acme") as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(model="stand-in", prompt="x")
    assert refused.value.response.headers["retry-after"] == "3"


async def test_where_nobody_can_tell_nobody_is_let_in(guarded: GatewayAtWork, ledger: Ledger) -> None:
    ledger.error = NotConnected("the store is away")
    async with guarded.client("key-acme") as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.completions.create(model="stand-in", prompt="x")
    assert refused.value.status_code == 503
    assert guarded.metric("sparkle_gateway_answers_open") == 0


async def test_more_answers_than_it_may_hold_are_refused(queue_url: str, worker: AtWork) -> None:
    async with gateway_at_work(queue_url, max_open=2) as gateway, gateway.client() as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(model="stand-in", prompt="x", n=3)
        assert refused.value.code == "queue_full"
        assert (await client.completions.create(model="stand-in", prompt="x", max_tokens=1)).choices


async def test_a_queue_that_is_full_is_a_429_that_says_when(
    nats_binary: None, eventually: Eventually
) -> None:
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="test"))
        await topology.apply(connection, TopologySettings(regions=REGION, jobs_max_count=1))
        waiting = Job(prompt="x", tenant=TENANT, region=REGION)
        await JobPublisher(connection).publish(waiting, PriorityClass.P0, publication=1)
        async with gateway_at_work(server.url) as gateway, gateway.client() as client:
            for stream in (False, True):
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.completions.create(model="stand-in", prompt="x", stream=stream)
                assert (refused.value.code, refused.value.type) == ("queue_full", "rate_limit_error")
                assert refused.value.response.headers["retry-after"] == "1"
            await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 0)
        await connection.close()


async def test_what_needs_no_key_has_none(guarded: GatewayAtWork) -> None:
    async with guarded.client() as client:
        for path in ("/healthz", "/readyz", "/health", "/metrics", "/openapi.json"):
            answer = await client._client.get(guarded.url + path)  # pyright: ignore[reportPrivateUsage]
            assert answer.status_code == 200

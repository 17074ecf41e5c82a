"""Clients that go, or read slowly: their jobs end at once, and nobody's memory grows."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai import AsyncOpenAI

from sparkle.queue.connection import Connection
from sparkle.schemas.control import UsageRecord
from tests.conftest import Eventually
from tests.gateway_at_work import GatewayAtWork, gateway_at_work
from tests.worker_at_work import AtWork, Overheard

pytestmark = pytest.mark.asyncio(loop_scope="module")


def cancelled(records: list[UsageRecord]) -> list[str]:
    return [record.job for record in records if record.outcome == "cancelled"]


async def test_closing_a_stream_cancels_its_job(
    client: AsyncOpenAI, gateway: GatewayAtWork, connection: Connection, eventually: Eventually
) -> None:
    heard = await Overheard.listen(connection)
    stream = await client.completions.create(
        model="stand-in", prompt="pace_ms=5", max_tokens=4000, stream=True
    )
    first = await anext(aiter(stream))
    await stream.close()
    await eventually(lambda: cancelled(heard.usage))
    assert cancelled(heard.usage) == [first.id.removeprefix("cmpl-")]
    (record,) = heard.usage
    assert 0 < record.completion_tokens < 1000
    await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 0)
    assert gateway.metric("sparkle_gateway_disconnects_total") == 1.0


async def test_a_job_is_cancelled_in_the_pass_in_which_its_client_goes(
    client: AsyncOpenAI, connection: Connection, eventually: Eventually
) -> None:
    heard = await Overheard.listen(connection)
    stream = await client.completions.create(
        model="stand-in", prompt="wait_after=2", max_tokens=4000, stream=True, logprobs=0
    )
    num_tokens = 0
    async for piece in stream:
        assert piece.choices[0].logprobs is not None
        num_tokens += len(piece.choices[0].logprobs.tokens or ())
        if num_tokens == 2:
            break
    # the pass of the third one never ends
    await stream.close()
    await eventually(lambda: cancelled(heard.usage))
    (record,) = heard.usage
    assert record.completion_tokens == 2


async def test_going_before_an_answer_that_comes_at_once_cancels_its_jobs(
    client: AsyncOpenAI, gateway: GatewayAtWork, connection: Connection, eventually: Eventually
) -> None:
    heard = await Overheard.listen(connection)
    asking = asyncio.create_task(
        client.completions.create(model="stand-in", prompt="pace_ms=5", max_tokens=4000, n=3)
    )
    await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 3)
    asking.cancel()
    await asyncio.wait({asking})
    await eventually(lambda: len(cancelled(heard.usage)) == 3)
    await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 0)


async def ask_and_not_read(port: int, max_tokens: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of long answers that takes nothing of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    fields = {"prompt": "text_chars=4000", "max_tokens": max_tokens, "stream": True}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def test_a_client_that_reads_nothing_is_taken_for_gone(
    queue_url: str, connection: Connection, worker: AtWork, eventually: Eventually
) -> None:
    heard = await Overheard.listen(connection)
    async with gateway_at_work(queue_url, send_timeout_s=0.3) as gateway:
        # 16 MB: no socket holds them
        _, writer = await ask_and_not_read(gateway.port, 4000)
        await eventually(lambda: gateway.metric("sparkle_gateway_disconnects_total") == 1.0)
        await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 0)
        writer.close()
    assert len(heard.usage) <= 1


async def test_a_slow_reader_has_the_whole_answer_in_the_end(
    queue_url: str, connection: Connection, worker: AtWork, eventually: Eventually
) -> None:
    async with gateway_at_work(queue_url) as gateway:
        reader, writer = await ask_and_not_read(gateway.port, 1000)
        # all of it has been written, and lies in the gateway as one answer, not as events
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += await reader.read(65_536)
        writer.close()
    events = bytes(received).count(b'"text_completion"')
    assert b"data: [DONE]" in received
    # what waited was merged: of 1000 chunks far fewer events came
    assert events < 1000
    text = received.count(b"...................")
    assert text > 0

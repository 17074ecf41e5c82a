"""A worker that goes in the middle of a stream: the HTTP client sees a pause and nothing else."""

from __future__ import annotations

import pytest

from sparkle.queue.connection import Connection
from tests.engine_stand_in import text_of
from tests.gateway_at_work import GatewayAtWork
from tests.worker_at_work import at_work

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_second_worker_takes_over_and_the_client_sees_a_pause(
    queue_url: str, connection: Connection, gateway: GatewayAtWork
) -> None:
    async with gateway.client() as client:
        async with at_work(queue_url, name="first") as first:
            stream = await client.completions.create(
                model="stand-in", prompt="pace_ms=20", max_tokens=60, stream=True
            )
            pieces = [await anext(aiter(stream))]
            # told twice, it hands its jobs back
            first.life.interrupt()
            first.life.interrupt()
            await first.end()
        async with at_work(queue_url, name="second"):
            pieces += [piece async for piece in stream]
    job = pieces[0].id.removeprefix("cmpl-")
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == "".join(text_of(job, index) for index in range(60))

"""Requests that are meant to hurt: each costs itself, and the next one is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.gateway_at_work import GatewayAtWork, gateway_at_work
from tests.worker_at_work import AtWork

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"


@asynccontextmanager
async def opened(gateway: GatewayAtWork) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the next answer; 0 when the connection just ended."""
    line = await reader.readline()
    return int(line.split()[1]) if line else 0


async def send(gateway: GatewayAtWork, body: bytes, *, path: str = PATH) -> tuple[int, bytes]:
    """Status and body of one request."""
    async with opened(gateway) as (reader, writer):
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await status_of(reader)
        return status, (await reader.read()).partition(b"\r\n\r\n")[2]


async def require_answers(gateway: GatewayAtWork) -> None:
    """An ordinary request is answered."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).encode()
    assert (await send(gateway, body))[0] == 200


DEEP = 200_000

BODIES = {
    "empty": b"",
    "half": b'{"messages": [',
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep in a field": b'{"messages":[{"role":"user","content":"x"}],"metadata":'
    + b"[" * DEEP
    + b"]" * DEEP
    + b"}",
    "bad utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "half a surrogate pair": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "nul": b"\0" * 1000,
    "not a number": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "no number where nothing is read": b'{"messages":[{"role":"user","content":"x"}],"metadata":{"a":NaN}}',
    "a huge number": b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 100_000 + b"}",
    "infinite deadline": b'{"messages":[{"role":"user","content":"x"}],"deadline_s":1e999}',
    "many messages": b'{"messages":['
    + b'{"role":"user","content":"x"},' * 5000
    + b'{"role":"user","content":"x"}]}',
    "many unknown fields": b"{" + b",".join(b'"f%d":1' % n for n in range(20_000)) + b"}",
    "long field name": b'{"' + b"f" * 100_000 + b'":1}',
    "a list": b"[]",
    "a word": b"true",
}


async def test_a_body_that_is_none_costs_one_request(gateway: GatewayAtWork, worker: AtWork) -> None:
    for name, body in BODIES.items():
        status, answer = await send(gateway, body)
        assert status == 400, name
        assert json.loads(answer)["error"]["type"] == "invalid_request_error", name
        # fields are named, not shown
        assert len(answer) < 2000, name
        await require_answers(gateway)


async def test_a_body_of_100_mb_is_refused_by_its_length(gateway: GatewayAtWork, worker: AtWork) -> None:
    async with opened(gateway) as (reader, writer):
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n".encode())
        assert await status_of(reader) == 413
    await require_answers(gateway)


async def test_a_body_that_does_not_say_its_length_is_refused_where_it_is_too_long(
    queue_url: str, worker: AtWork
) -> None:
    async with gateway_at_work(queue_url, body_max_bytes=100_000) as gateway:
        async with opened(gateway) as (reader, writer):
            writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
            piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
            for _ in range(4):
                writer.write(piece)
            assert await status_of(reader) == 413
        await require_answers(gateway)


async def test_a_body_that_trickles_in_is_ended(queue_url: str, worker: AtWork) -> None:
    async with gateway_at_work(queue_url, body_timeout_s=1.0) as gateway:
        async with opened(gateway) as (reader, writer):
            writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
            assert await status_of(reader) == 408
        await require_answers(gateway)


async def test_a_head_that_trickles_in_is_ended(queue_url: str, worker: AtWork) -> None:
    async with gateway_at_work(queue_url, head_timeout_s=1.0) as gateway:
        async with opened(gateway) as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost:")
            assert await status_of(reader) == 408
        async with opened(gateway) as (reader, _):
            # one that says nothing at all as well
            assert await status_of(reader) == 408
        await require_answers(gateway)


async def test_a_head_without_an_end_is_refused(gateway: GatewayAtWork, worker: AtWork) -> None:
    async with opened(gateway) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 200_000)
        assert await status_of(reader) == 431
    await require_answers(gateway)


async def test_bodies_together_are_bounded(queue_url: str, worker: AtWork) -> None:
    async with gateway_at_work(queue_url, bodies_max_bytes=150_000) as gateway:
        async with opened(gateway) as (_, held), opened(gateway) as (reader, writer):
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100001\r\n\r\n".encode()
            # the first keeps its place: its last byte does not come
            held.write(head + b" " * 100_000)
            await held.drain()
            while True:
                writer.write(head + b" " * 100_001)
                status = await status_of(reader)
                if status == 503:
                    break
                # the first one's bytes were not all there yet: then this is an empty body, answered in order
                assert status == 400
                await reader.readuntil(b"}}")
        await require_answers(gateway)


async def test_garbage_is_no_request(gateway: GatewayAtWork, worker: AtWork) -> None:
    async with opened(gateway) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage\r\n\r\n")
        assert await status_of(reader) == 400
    await require_answers(gateway)

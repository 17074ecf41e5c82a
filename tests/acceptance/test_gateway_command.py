"""`sparkle gateway` as a program, with a real worker and sparkle-tiny behind it: asked, drained, refused."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

import sparkle
from sparkle.config import environment
from sparkle.queue.connection import Connection
from sparkle.queue.control import WorkerRoster
from sparkle.queue.local import LocalServer
from tests.conftest import Eventually
from tests.engine_stand_in import text_of
from tests.gateway_at_work import gateway_at_work
from tests.worker_at_work import at_work
from tests.worker_processes import TINY, stand_in, worker_process

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
TOKENS = 500
"""At 20 ms each as long as it may take to see who writes them."""

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is MFA?"}]


@asynccontextmanager
async def gateway_process(*flags: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The command, killed after the test if it still runs; it does not look for a queue for long."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparkle.cli", "gateway", "--port", "0", *flags),
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT), "SPARKLE_CLIENT_CONNECT_TIMEOUT_S": "2"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def address(process: asyncio.subprocess.Process) -> str:
    """Where it says that it listens."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+/v1)\n", line)
    assert found is not None, line
    return found[1]


async def test_it_answers_until_it_is_told_to_end(nats_server: LocalServer, connection: Connection) -> None:
    flags = ("--no-keys", "--region", "local", "--nats", nats_server.url)
    async with at_work(nats_server.url), gateway_process(*flags) as process:
        async with AsyncOpenAI(base_url=await address(process), api_key="any", max_retries=3) as client:
            stream = await client.completions.create(
                model="stand-in", prompt="secret-4711 pace_ms=10", max_tokens=40, stream=True
            )
            await anext(aiter(stream))
            process.send_signal(signal.SIGTERM)
            # what is under way ends as if nothing had been said
            pieces = [piece async for piece in stream]
            assert pieces[-1].choices[0].finish_reason == "length"
        _, log = await process.communicate()
    assert process.returncode == 0
    assert b"gateway_listening" in log
    assert b"gateway_ended" in log
    assert b"secret-4711" not in log


async def tenants(*arguments: str) -> str:
    """What `sparkle tenants …` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparkle.cli", "tenants", *arguments),
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode()


async def test_a_tenants_key_lets_it_in_and_its_usage_is_shown(
    nats_server: LocalServer, connection: Connection
) -> None:
    meter = ("--meter-nats", nats_server.meter_url)
    assert "USAGE" in await tenants("init", *meter)
    key = (await tenants("add", "acme", "--region", "local", "--allowance", "1_000", *meter)).strip()
    flags = ("--region", "local", "--nats", nats_server.url, *meter)
    async with at_work(nats_server.url, metered=True), gateway_process(*flags) as process:
        url = await address(process)
        async with AsyncOpenAI(base_url=url, api_key=f"{key}x", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.completions.create(model="stand-in", prompt="x")
        async with AsyncOpenAI(base_url=url, api_key=key, max_retries=3) as client:
            answer = await client.completions.create(model="stand-in", prompt="x", max_tokens=7)
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
    assert process.returncode == 0
    assert key.split("-", 3)[3].encode() not in log
    assert answer.usage is not None
    shown = (await tenants("usage", "acme", "--format", "csv", *meter)).splitlines()
    used = answer.usage
    assert shown[1].split(",")[2:] == [
        "1",
        f"{used.prompt_tokens}",
        "0",
        f"{used.completion_tokens}",
        f"{used.total_tokens}",
        "1000",
    ]


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--no-keys", "--host", "0.0.0.0"), 2, "no_keys with host 0.0.0.0"),
        (("--no-keys", "--nats", "nats://127.0.0.1:1"), 3, "no server at 127.0.0.1:1"),
        (("--nats", "nats://127.0.0.1:1"), 3, "no server at 127.0.0.1:1"),
    ],
    ids=["open to all", "no queue", "no queue and keys"],
)
async def test_what_cannot_be_is_one_sentence(flags: tuple[str, ...], code: int, says: str) -> None:
    async with gateway_process(*flags) as process:
        _, words = await process.communicate()
    assert process.returncode == code
    (line,) = [line for line in words.decode().splitlines() if line.startswith("sparkle: ")]
    assert says in line


async def test_a_worker_that_is_killed_costs_a_stream_a_pause(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    roster = WorkerRoster(connection, "local")
    await roster.start()
    async with (
        worker_process(*stand_in(nats_server, "--name", "w-0")) as first,
        worker_process(*stand_in(nats_server, "--name", "w-1")) as second,
        gateway_at_work(nats_server.url) as gateway,
        gateway.client() as client,
    ):
        workers = (first, second)
        await eventually(lambda: all("worker_ready" in worker.events() for worker in workers))
        stream = await client.completions.create(
            model="stand-in", prompt="pace_ms=20", max_tokens=TOKENS, stream=True
        )
        pieces = [await anext(aiter(stream))]
        # whoever has it tells so with its signs of life, and the other one of its leases
        await eventually(lambda: any(worker.running for worker in roster.workers()))
        (holder,) = [number for number, worker in enumerate(roster.workers()) if worker.running]
        workers[holder].process.kill()
        pieces += [piece async for piece in stream]
        await eventually(lambda: "job_done" in workers[1 - holder].events())
    await roster.stop()
    job = pieces[0].id.removeprefix("cmpl-")
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == "".join(text_of(job, index) for index in range(TOKENS))
    assert pieces[-1].choices[0].finish_reason == "length"


async def test_the_readmes_example_runs(nats_server: LocalServer, connection: Connection) -> None:
    [code, _] = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    usual, model = "http://127.0.0.1:8080/v1", "sparkle-tiny"
    assert usual in code
    assert model in code
    async with at_work(nats_server.url), gateway_at_work(nats_server.url) as gateway:
        example = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code.replace(usual, f"{gateway.url}/v1").replace(model, "stand-in")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await example.communicate()
    assert (example.returncode, err) == (0, b"")
    # what the stand-in writes, up to the gateway's own limit
    assert len(out.split()) == 1024


async def test_sparkle_tiny_answers_http_as_it_answers_the_queue(
    nats_server: LocalServer, connection: Connection
) -> None:
    async with (
        worker_process(*TINY, "--region", "local", "--nats", nats_server.url),
        gateway_at_work(nats_server.url, models="") as gateway,
        gateway.client() as client,
        sparkle.connect(nats_server.url, region="local", tenant="acme") as direct,
    ):
        # a worker is known from its next sign of life on
        while not (models := (await client.models.list()).data):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        model = models[0].id
        whole = await client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, temperature=0
        )
        stream = await client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, temperature=0, stream=True
        )
        streamed = "".join([piece.choices[0].delta.content or "" async for piece in stream])
        response = await client.responses.create(
            model=model, input="What is MFA?", max_output_tokens=24, temperature=0
        )
        job = sparkle.Job(
            messages=[sparkle.Turn(role="user", content="What is MFA?")],
            max_tokens=24,
            sampling=sparkle.Sampling(temperature=0.0),
        )
        text = await (await direct.submit(job)).text()
        assert text
        assert whole.choices[0].message.content == streamed == response.output_text == text
        assert whole.usage is not None
        assert whole.usage.prompt_tokens > 0
        told = await client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, temperature=0, logprobs=True, top_logprobs=2
        )
        assert told.choices[0].logprobs is not None
        tokens = told.choices[0].logprobs.content or []
        assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == text
        # greedy: each token is the likeliest one
        assert [token.token for token in tokens] == [token.top_logprobs[0].token for token in tokens]
        thought = await client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, reasoning_effort="high", seed=1
        )
        assert thought.usage is not None
        assert thought.usage.completion_tokens_details is not None
        assert thought.usage.completion_tokens_details.reasoning_tokens
        long = "a login at night. " * 40_000
        with pytest.raises(openai.BadRequestError, match="shorten the prompt") as refused:
            await client.completions.create(model=model, prompt=long)
        assert refused.value.code == "context_length_exceeded"

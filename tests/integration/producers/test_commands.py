"""The commands as real processes against a real server and a scripted worker."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest_asyncio

from sparkle.config import environment
from sparkle.errors import FailureCode
from sparkle.producers.answer_view import TextView
from sparkle.producers.asking import ask, chat_job
from sparkle.producers.client import Client
from sparkle.queue.connection import Connection
from sparkle.queue.control import ControlFeed, HeartbeatSender
from sparkle.queue.local import LocalServer
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.job import Job, Thinking
from sparkle.schemas.shape import JsonSchemaShape
from sparkle.schemas.tools import Tool
from tests.conftest import REGION
from tests.integration.producers.conftest import Run, StartWorker, answer, until, whole_answer


@dataclass
class Ended:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


class Commands:
    """Starts `sparkle …` against one server."""

    def __init__(self, url: str) -> None:
        self._environ = {**environment(), "SPARKLE_CLIENT_NATS": url, "SPARKLE_CLIENT_TENANT": "acme"}
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sparkle.cli",
            *arguments,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self._environ,
        )
        self._started.append(process)
        return process

    async def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        process = await self.start(*arguments)
        return await self.end(process, stdin)

    async def end(self, process: asyncio.subprocess.Process, stdin: bytes | None = None) -> Ended:
        out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    async def close(self) -> None:
        for process in self._started:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest_asyncio.fixture
async def commands(nats_server: LocalServer, connection: Connection) -> AsyncGenerator[Commands]:
    started = Commands(nats_server.url)
    yield started
    await started.close()


async def test_ask_writes_the_answer_and_a_line_of_figures(
    commands: Commands, start_worker: StartWorker
) -> None:
    jobs: list[Job] = []

    async def remember(run: Run) -> None:
        jobs.append(run.job)
        await whole_answer(run)

    await start_worker(remember)
    ended = await commands.run(
        "ask", "-", "--system", "Be brief.", "--max-tokens", "7", "--temperature", "0", "--seed", "5",
        "--thinking", "low", stdin="was läuft?\n".encode(),
    )  # fmt: skip
    assert (ended.code, ended.out) == (0, answer(7) + "\n")
    assert ended.err.startswith("3 prompt + 7 answer tokens · queued ")
    assert ended.err.endswith("ended by length · worker w1\n")
    [asked] = jobs
    turns = [(turn.role, turn.content) for turn in asked.messages or ()]
    assert turns == [("system", "Be brief."), ("user", "was läuft?\n")]
    assert (asked.max_tokens, asked.thinking) == (7, Thinking.LOW)
    assert (asked.sampling.temperature, asked.sampling.seed) == (0.0, 5)


async def test_ask_for_a_shape_and_with_tools(
    commands: Commands, start_worker: StartWorker, tmp_path: Path
) -> None:
    jobs: list[Job] = []

    async def remember(run: Run) -> None:
        jobs.append(run.job)
        await whole_answer(run)

    await start_worker(remember)
    schema, tools = tmp_path / "schema.json", tmp_path / "tools.json"
    schema.write_text('{"type": "object", "required": ["b", "a"]}')
    own = {"name": "f", "parameters": {"type": "object"}}
    tools.write_text(json.dumps([own, {"type": "function", "function": {"name": "g"}}]))
    ended = await commands.run("ask", "x", "--schema", str(schema), "--tools", str(tools))
    assert ended.code == 0
    [asked] = jobs
    assert asked.response_format == JsonSchemaShape(schema={"type": "object", "required": ["b", "a"]})
    # a function in OpenAI's form is strict only if it says so
    assert asked.tools == [Tool(name="f", parameters={"type": "object"}), Tool(name="g", strict=False)]


async def test_ask_with_a_file_that_is_no_json(commands: Commands, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("canary")
    for flag, file, says in (
        ("--schema", bad, "--schema: the file holds no JSON"),
        ("--tools", tmp_path / "none.json", "--tools: the file cannot be read"),
    ):
        ended = await commands.run("ask", "x", flag, str(file))
        assert (ended.code, ended.out) == (2, "")
        assert says in ended.err
        assert "canary" not in ended.err
    bad.write_text('{"name": "canary"}')
    ended = await commands.run("ask", "x", "--tools", str(bad))
    assert (ended.code, "canary" in ended.err) == (2, False)
    assert "tools: " in ended.err


async def test_ask_streams(commands: Commands, start_worker: StartWorker) -> None:
    may_end = asyncio.Event()

    async def begin(run: Run) -> None:
        await run.write(0, 2)
        await may_end.wait()
        await run.finish()

    await start_worker(begin)
    process = await commands.start("ask", "x", "--max-tokens", "4")
    assert process.stdout is not None
    assert await process.stdout.readexactly(2) == b"ab"
    may_end.set()
    assert (await commands.end(process)).out == "cd\n"


async def test_what_the_model_thinks_is_no_part_of_a_pipes_answer(
    commands: Commands, start_worker: StartWorker
) -> None:
    async def think(run: Run) -> None:
        thought = run.chunk(0).model_copy(update={"channel": Channel.REASONING, "text": "hm"})
        await run.worker.replies.send(run.tenant, thought)
        said = run.chunk(1).model_copy(update={"text": "\x1b[31myes", "text_start": 0})
        await run.worker.replies.send(run.tenant, said)
        texts = {"text": "\x1b[31myes", "reasoning": "hm", "tokens": [0, 1]}
        await run.end(run.result().model_copy(update=texts))

    await start_worker(think)
    # a pipe has the text as it is, escape codes and all
    assert (await commands.run("ask", "x")).out == "\x1b[31myes\n"


async def test_a_job_that_nobody_takes_is_said_so_while_it_waits(
    client: Client, start_worker: StartWorker
) -> None:
    out, err = io.StringIO(), io.StringIO()
    said = asyncio.Event()

    class Watched(TextView):
        def waiting(self, waited_s: float) -> None:
            super().waiting(waited_s)
            said.set()

    asking = asyncio.create_task(
        ask(client.settings, chat_job("x", max_tokens=3), Watched(out, err), patience_s=0.05)
    )
    await said.wait()
    await start_worker(whole_answer)
    assert await asking == 0
    assert out.getvalue() == answer(3) + "\n"
    assert err.getvalue().startswith("no token after 0 s")


async def test_a_deadline_in_the_past_is_refused(commands: Commands) -> None:
    for seconds in ("0", "-1"):
        ended = await commands.run("ask", "x", "--deadline", seconds)
        assert (ended.code, ended.out) == (2, "")
        assert "--deadline" in ended.err


async def test_ask_as_json_lines(commands: Commands, start_worker: StartWorker) -> None:
    await start_worker(whole_answer)
    ended = await commands.run("ask", "x", "--json-lines", "--max-tokens", "30")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert "".join(line["text"] for line in lines[:-1]) == answer(30)
    assert {line["kind"] for line in lines[:-1]} == {"chunk"}
    assert (lines[-1]["kind"], lines[-1]["text"]) == ("result", answer(30))
    assert ended.err == ""


async def test_a_failed_job_is_exit_code_1(commands: Commands, start_worker: StartWorker) -> None:
    async def fail(run: Run) -> None:
        await run.fail(FailureCode.TOO_LONG)

    await start_worker(fail)
    ended = await commands.run("ask", "x")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "sparkle: too_long: as the script says\n"


async def test_ctrl_c_cancels_the_job(
    commands: Commands, connection: Connection, start_worker: StartWorker
) -> None:
    jobs: asyncio.Queue[str] = asyncio.Queue()

    async def begin(run: Run) -> None:
        await run.write(0, 1)
        jobs.put_nowait(run.job.id)
        await asyncio.Event().wait()

    await start_worker(begin)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = await commands.start("ask", "x")
        assert process.stdout is not None
        assert await process.stdout.readexactly(1) == b"a"
        process.send_signal(number)
        ended = await commands.end(process)
        assert ended.code == code
        assert "Traceback" not in ended.err
        subject = subjects.cancel("acme", await jobs.get())
        assert await connection.last_stored(subjects.CONTROL_STREAM, subject) is not None


async def test_a_reader_that_goes_away_cancels_the_job_quietly(
    commands: Commands, start_worker: StartWorker
) -> None:
    await start_worker(whole_answer)
    process = await commands.start("ask", "x", "--max-tokens", "5000", "--json-lines")
    assert process.stdout is not None
    # nobody reads the rest: the pipe breaks
    reading = cast("asyncio.ReadTransport", process.stdout._transport)  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
    reading.close()
    ended = await commands.end(process)
    assert ended.code == 1
    assert ended.err == ""


async def test_a_batch_that_is_interrupted_goes_on(
    commands: Commands, start_worker: StartWorker, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(line(f"id{number}", 5 + number % 2) for number in range(10)) + "\nbroken\n")
    held = asyncio.Event()

    async def answer_the_odd_ones(run: Run) -> None:
        if run.job.max_tokens == 5:
            await held.wait()
        await whole_answer(run)

    await start_worker(answer_the_odd_ones)
    process = await commands.start("batch", str(source), "-o", str(target), "--concurrency", "32")

    async def six_lines() -> bool:
        return target.exists() and target.read_bytes().count(b"\n") == 6

    await until(six_lines)
    process.send_signal(signal.SIGINT)
    ended = await commands.end(process)
    assert ended.code == 130
    assert ended.err.startswith("stopped: 5 answered, 1 failed, 0 done before, of 11 lines")
    assert "run the same command again to go on" in ended.err
    held.set()

    ended = await commands.run("batch", str(source), "-o", str(target))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("5 answered, 0 failed, 6 done before, of 11 lines")
    lines = [json.loads(text) for text in target.read_text().splitlines()]
    assert sorted(found["id"] for found in lines) == sorted(f"batch_req_{number}" for number in range(1, 12))


def line(custom_id: str, max_tokens: int) -> str:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


async def test_a_batch_with_a_failed_line_is_exit_code_1(commands: Commands, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("broken\n")
    ended = await commands.run("batch", str(source), "-o", str(tmp_path / "out.jsonl"))
    assert ended.code == 1
    assert ended.err.startswith("0 answered, 1 failed, 0 done before, of 1 lines")


async def test_topology_is_declared_once_and_shown(commands: Commands) -> None:
    ended = await commands.run("topology", "apply", "--region", "eu", "--region", "us")
    assert ended.code == 0
    assert "stream   JOBS             updated" in ended.out
    assert "consumer us-p4            created" in ended.out
    again = await commands.run("topology", "apply", "--region", "eu", "--region", "us")
    assert "created" not in again.out
    assert "updated" not in again.out
    shown = await commands.run("topology", "show")
    assert [name for name in ("JOBS", "RESULTS", "CONTROL", "eu-p0", "us-p4") if name not in shown.out] == []


async def test_status_counts_what_waits(commands: Commands) -> None:
    process = await commands.start("ask", "x", "--max-tokens", "4000")

    async def shown() -> bool:
        ended = await commands.run("status")
        assert ended.code == 0
        assert "no worker" in ended.out
        row = next(text for text in ended.out.splitlines() if "p3" in text)
        return [cell.strip() for cell in row.strip("│").split("│")][:3] == ["p3", "1", "0"]

    await until(shown)
    process.send_signal(signal.SIGINT)
    await commands.end(process)


async def test_a_watch_ends_with_ctrl_c(commands: Commands) -> None:
    process = await commands.start("status", "--watch", "--every", "0.1")
    assert process.stdout is not None
    for _ in range(2):
        await process.stdout.readuntil(b"no worker")
    process.send_signal(signal.SIGINT)
    ended = await commands.end(process)
    assert (ended.code, ended.err) == (130, "")


async def test_drain_reaches_the_worker_and_says_so_where_there_is_none(
    commands: Commands, connection: Connection
) -> None:
    beat = Heartbeat(
        worker="w-1", region=REGION, state=WorkerState.DRAINING, model="m", slots=1, running=[], sent_ms=1
    )
    said: list[asyncio.Task[None]] = []

    def drain() -> None:
        said.append(asyncio.create_task(HeartbeatSender(connection, lambda: beat).send()))

    control = ControlFeed(
        connection,
        REGION,
        "w-1",
        on_cancel=lambda _tenant, _job: None,
        on_conversation_end=lambda _tenant, _name: None,
        on_drain=drain,
    )
    await control.start()
    ended = await commands.run("worker", "drain", "w-1")
    assert (ended.code, ended.out) == (0, "w-1 takes nothing more and hands its jobs over\n")
    assert len(said) == 1
    await said[0]
    await control.stop()
    ended = await commands.run("worker", "drain", "w-1")
    assert ended.code == 2
    assert ended.err.startswith("sparkle: no worker named w-1 is connected in region local; `sparkle status")

"""`sparkle demo` and `sparkle up` as a newcomer runs them: real server, real worker, the bundled model."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

import sparkle
from sparkle.config import environment
from sparkle.schemas.answer import Result
from sparkle.schemas.job import Sampling, Turn
from tests.conftest import Eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("nats_binary")]

ROOT = Path(__file__).parents[2]
GREEDY = Sampling(temperature=0.0)
PAGE_TOKENS = 16
URL = re.compile(r"nats://127\.0\.0\.1:(\d+)")


async def start(*arguments: str, folder: Path = ROOT) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "sparkle.cli",
        *arguments,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )


async def run(*arguments: str) -> tuple[int | None, str, str]:
    process = await start(*arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def descendants(process: Process) -> list[int]:
    """Server, worker and engine process."""
    return [int(child.pid) for child in psutil.Process(process.pid).children(recursive=True)]


def all_ended(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


@asynccontextmanager
async def service(*arguments: str, folder: Path = ROOT) -> AsyncGenerator[tuple[Process, str]]:
    """`sparkle up`, ready, and its address; ended in any case."""
    process = await start("up", "--port", "0", *arguments, folder=folder)
    assert process.stdout is not None
    try:
        said = (await process.stdout.readuntil(b"Ctrl-C ends worker and server.\n")).decode()
        found = URL.search(said)
        assert found is not None
        assert "memory plan for " in said
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def row(out: str, name: str, *columns: int) -> list[str]:
    """Cells of the table's row of a job."""
    [line] = [line for line in out.splitlines() if line.startswith(f"│ {name} ")]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    return [cells[column] for column in columns]


async def test_the_demo_shows_jobs_on_their_way_and_ends_what_it_started() -> None:
    code, out, err = await run("demo")
    assert (code, err) == (0, "")
    places = [
        out.index(part)
        for part in (
            "nats-server on nats://127.0.0.1:",
            "streams and consumers of region local declared",
            "worker started, process ",
            "serves sparkle-tiny with 8 slots",
            "four prompts at once:",
            "in the queue as p0",
            "leased by ",
            "the next question of one of them:",
            "what the jobs took",
            "What you just saw:",
        )
    ]
    assert places == sorted(places)
    assert "memory plan" not in out
    for name in ("verdict", "analysis", "follow-up", "chat", "note"):
        assert re.search(rf"s  {name} +in the queue as p[01], stored after ", out)
        assert re.search(rf"s  {name} +leased by \S+, first token after ", out)
        assert re.search(rf"s  {name} +done: \d+ tokens, ended by stop", out)
    verdict = re.search(r"s  verdict +│ (.*)", out)
    assert verdict is not None
    assert json.loads(verdict[1])["verdict"] == "malicious"
    asked, answer = (int(figure) for figure in row(out, "analysis", 2, 6))
    prompt, cached = (int(figure) for figure in row(out, "note", 2, 3))
    assert asked + answer - PAGE_TOKENS <= cached < prompt
    started = re.search(r"worker started, process (\d+)", out)
    address = URL.search(out)
    assert started is not None
    assert address is not None
    assert not psutil.pid_exists(int(started[1]))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(address[1]))) != 0


async def test_a_follow_up_reads_what_is_new_until_its_conversation_has_ended() -> None:
    async def answered(client: sparkle.Client, turns: list[Turn]) -> Result:
        job = sparkle.Job(messages=turns, max_tokens=30, sampling=GREEDY, conversation="c")
        return await (await client.submit(job)).result()

    report = Turn(role="user", content="alert: 40 failed logins for root from 203.0.113.9. " * 4)
    async with (
        service() as (_, address),
        await sparkle.connect(address, region="local", tenant="soc") as client,
    ):
        first = await answered(client, [report])
        turns = [report, Turn(role="assistant", content=first.text), Turn(role="user", content="benign?")]
        second = await answered(client, turns)
        await client.end_conversation("c")
        # by a job's way to the engine and back the worker has heard of it
        await (await client.submit(sparkle.Job(prompt="a", max_tokens=1))).result()
        third = await answered(client, turns)
    assert first.usage.cached_tokens == 0
    # the prompt and the answer, as far as the template writes both as they were
    assert second.usage.cached_tokens >= first.usage.prompt_tokens - PAGE_TOKENS
    assert (third.usage.cached_tokens, third.tokens) == (0, second.tokens)


async def test_a_service_answers_until_it_is_told_to_end(tmp_path: Path) -> None:
    async with service("--region", "eu") as (process, url):
        where = ("--nats", url, "--region", "eu")
        children = descendants(process)
        # the server, the worker, its engine, and what tries that one's grammars
        assert len(children) == 4
        terms = ("MFA", "triage", "phishing")
        answers = await asyncio.gather(
            *(run("ask", f"What is {term}?", "--temperature", "0", *where) for term in terms)
        )
        assert [code for code, _, _ in answers] == [0, 0, 0]
        assert [out.split()[0].lower() for _, out, _ in answers] == ["mfa", "triage", "phishing"]
        code, out, _ = await run("status", *where)
        assert code == 0
        assert re.search(r"ready +│ +0 of 8 +│ +sparkle-tiny", out)
        await answers_a_batch(tmp_path, where)
        process.send_signal(signal.SIGINT)
        _, log = await process.communicate()
        assert process.returncode == 130
        assert all_ended(children)
    # what the worker says is one JSON object a line, with ids and counts alone
    events = [json.loads(line) for line in log.decode().splitlines()]
    assert {"worker_ready", "job_done", "worker_ended"} <= {event["event"] for event in events}
    assert sum(event["event"] == "job_done" for event in events) == 33
    assert b"phishing" not in log


async def answers_a_batch(folder: Path, where: tuple[str, ...]) -> None:
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    body = {"messages": [{"role": "user", "content": "What is MFA?"}], "max_tokens": 8, "temperature": 0}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    source.write_text("".join(json.dumps({"custom_id": f"id{n}", **line}) + "\n" for n in range(30)))
    code, out, err = await run("batch", str(source), "-o", str(target), *where)
    assert (code, out) == (0, "")
    assert err.startswith("30 answered, 0 failed, 0 done before, of 30 lines")
    lines = [json.loads(text) for text in target.read_text().splitlines()]
    assert sorted(found["custom_id"] for found in lines) == sorted(f"id{n}" for n in range(30))
    [text] = {found["response"]["body"]["choices"][0]["message"]["content"] for found in lines}
    assert text.startswith("MFA means")


async def test_a_service_whose_worker_dies_ends_and_says_so(eventually: Eventually) -> None:
    async with service() as (process, _):
        children = descendants(process)
        [worker] = [pid for pid in children if "worker" in psutil.Process(pid).cmdline()]
        psutil.Process(worker).kill()
        _, err = await process.communicate()
        assert process.returncode == 1
        assert err.decode().splitlines()[-1] == "sparkle: the worker ended with code -9"
        await eventually(lambda: all_ended(children))


async def test_a_service_whose_server_dies_ends_and_says_so(eventually: Eventually) -> None:
    async with service() as (process, _):
        children = descendants(process)
        [server] = [pid for pid in children if psutil.Process(pid).name() == "nats-server"]
        psutil.Process(server).kill()
        _, err = await process.communicate()
        assert process.returncode == 3
        assert err.decode().splitlines()[-1] == (
            "sparkle: nats-server ended with code -9; what waited in it is gone"
        )
        await eventually(lambda: all_ended(children))


async def test_the_example_of_the_readme_runs_and_a_closed_terminal_leaves_nothing(
    tmp_path: Path, eventually: Eventually
) -> None:
    # the gateway's example is tried with the gateway
    [_, code] = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    usual = "nats://127.0.0.1:4222"
    assert usual in code
    # a folder of that name is what the program would load if it looked where it was started
    (tmp_path / "sparkle").mkdir()
    (tmp_path / "sparkle" / "__init__.py").write_text("raise ImportError('not the package')\n")
    async with service(folder=tmp_path) as (process, url):
        example = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code.replace(usual, url), cwd=ROOT, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        out, err = await example.communicate()
        assert (example.returncode, err) == (0, b"")
        ends = re.findall(rb"\S\n(?:stop|length), [1-9]\d* tokens\n(\d+) of (\d+) prompt tokens were", out)
        (none, first_prompt), (cached, _) = [(int(some), int(prompt)) for some, prompt in ends]
        assert none == 0
        assert cached >= first_prompt - PAGE_TOKENS
        children = descendants(process)
        process.send_signal(signal.SIGHUP)
        await process.communicate()
        assert process.returncode == 143
        await eventually(lambda: all_ended(children))


async def test_the_worker_of_a_service_has_the_files_settings(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text('[worker]\nregion = "elsewhere"\n[engine]\ncache_s = -1\n')
    code, _, err = await run("--config", str(file), "up", "--port", "0")
    assert code == 1
    assert "sparkle worker: cache_s is -1.0 but must be 0 to 86,400" in err


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, _, err = await run("up", "--port", str(port))
    assert code == 3
    assert err.startswith("sparkle: nats-server ended with code 1 before it was ready")
    assert "address already in use" in err

"""A batch file through the real queue: every line has its output once, also after stops and outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkle.errors import FailureCode, NotConnected
from sparkle.producers.batch import BatchRun, Tally, count_lines, read_lines
from sparkle.producers.batch_output import BatchOutput
from sparkle.producers.client import Client
from sparkle.queue import topology
from sparkle.queue.connection import Connection
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from tests.integration.producers.conftest import Run, StartWorker, answer, until, whole_answer


def request(custom_id: str, **body: object) -> str:
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": fields}
    )


class Files:
    """An input and an output file, and a run over them."""

    def __init__(self, folder: Path) -> None:
        self.input = folder / "in.jsonl"
        self.output = folder / "out.jsonl"

    async def run(
        self, client: Client, *, concurrency: int = 8, on_progress: Callable[[Tally], None] | None = None
    ) -> Tally:
        with BatchOutput(self.output) as output:
            run = BatchRun(
                client, output, concurrency=concurrency, on_progress=on_progress or (lambda _: None)
            )
            return await run.run(read_lines(self.input))

    def answers(self) -> dict[str, str]:
        """Texts by custom_id of the lines with an answer."""
        return {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
            for line in self.lines()
            if line["response"]
        }

    def errors(self) -> dict[str, tuple[str | None, str]]:
        """custom_id and code by the line's own id, of the lines with an error."""
        return {
            line["id"]: (line["custom_id"], line["error"]["code"]) for line in self.lines() if line["error"]
        }

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_every_line_is_answered(client: Client, start_worker: StartWorker, files: Files) -> None:
    files.input.write_text("\n".join(request(f"id{number}", max_tokens=number) for number in range(1, 101)))
    worker = await start_worker(whole_answer)
    tally = await files.run(client)
    assert (tally.answered, tally.failed, tally.skipped) == (100, 0, 0)
    assert tally.completion_tokens == sum(range(1, 101))
    assert files.answers() == {f"id{number}": answer(number) for number in range(1, 101)}
    assert len(files.lines()) == len(worker.runs) == 100


async def test_bad_lines_are_error_lines_and_the_rest_goes_on(
    client: Client, start_worker: StartWorker, files: Files
) -> None:
    lines = [
        request("a"),
        "not json",
        request("a"),
        request("b", temperature=9),
        "",
        request("c", logit_bias={}),
        request("d"),
    ]
    files.input.write_text("\n".join(lines) + "\n")
    await start_worker(whole_answer)
    tally = await files.run(client)
    assert (tally.answered, tally.failed, tally.skipped) == (2, 4, 0)
    assert files.answers() == {"a": "abcde", "d": "abcde"}
    assert files.errors() == {
        "batch_req_2": (None, "invalid_json"),
        "batch_req_3": ("a", "duplicate_custom_id"),
        "batch_req_4": ("b", "invalid_line"),
        "batch_req_6": ("c", "invalid_line"),
    }
    # the second run has nothing to do
    before = files.output.read_bytes()
    tally = await files.run(client)
    assert (tally.answered, tally.failed, tally.skipped) == (0, 0, 6)
    assert files.output.read_bytes() == before


async def test_a_failed_job_is_an_error_line(client: Client, start_worker: StartWorker, files: Files) -> None:
    async def fail_the_long_ones(run: Run) -> None:
        await (run.fail(FailureCode.TOO_LONG) if run.job.max_tokens > 5 else whole_answer(run))

    files.input.write_text(request("a") + "\n" + request("b", max_tokens=6) + "\n")
    await start_worker(fail_the_long_ones)
    tally = await files.run(client)
    assert (tally.answered, tally.failed) == (1, 1)
    assert files.errors() == {"batch_req_2": ("b", "too_long")}


async def test_an_empty_file_has_an_empty_output(client: Client, files: Files) -> None:
    files.input.write_text("\n\n")
    assert count_lines(files.input) == 0
    assert await files.run(client) == Tally()
    assert files.output.read_bytes() == b""


async def test_a_stopped_run_cancels_its_jobs_and_the_next_one_goes_on(
    client: Client, connection: Connection, start_worker: StartWorker, files: Files
) -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def answer_the_short_ones(run: Run) -> None:
        if run.job.max_tokens > 5:
            begun.put_nowait(run.job.id)
            await asyncio.Event().wait()
        await whole_answer(run)

    worker = await start_worker(answer_the_short_ones)
    short = [request(f"short{number}") for number in range(6)]
    long = [request(f"long{number}", max_tokens=6) for number in range(4)]
    files.input.write_text("\n".join([*short, *long]))
    seen = asyncio.Event()

    def on_progress(tally: Tally) -> None:
        if tally.answered == 6:
            seen.set()

    running = asyncio.create_task(files.run(client, concurrency=3, on_progress=on_progress))
    jobs = [await begun.get() for _ in range(3)]
    await seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def all_cancelled() -> bool:
        tombstones = [
            await connection.last_stored(subjects.CONTROL_STREAM, subjects.cancel("acme", job))
            for job in jobs
        ]
        return None not in tombstones

    await until(all_cancelled)
    assert set(files.answers()) == {f"short{number}" for number in range(6)}
    # as a crash would, leave half a line
    with files.output.open("ab") as file:
        file.write(b'{"id": "batch_req_7", "custom_id": "lo')

    worker.script = whole_answer
    tally = await files.run(client)
    assert (tally.answered, tally.failed, tally.skipped) == (4, 0, 6)
    assert files.answers() == {
        **{f"short{number}": "abcde" for number in range(6)},
        **{f"long{number}": "abcdef" for number in range(4)},
    }
    assert len(files.lines()) == 10


async def test_a_full_queue_is_waited_for(
    client: Client, connection: Connection, start_worker: StartWorker, files: Files
) -> None:
    await topology.apply(connection, TopologySettings(regions="local", jobs_max_count=2))
    files.input.write_text("\n".join(request(f"id{number}") for number in range(12)))
    running = asyncio.create_task(files.run(client, concurrency=12))

    async def full() -> bool:
        return (await topology.show(connection)).streams[0].messages == 2

    await until(full)
    await start_worker(whole_answer)
    tally = await running
    assert (tally.answered, tally.failed) == (12, 0)


async def test_a_connection_that_ends_for_good_stops_the_run(client: Client, files: Files) -> None:
    files.input.write_text("\n".join(request(f"id{number}") for number in range(3)))
    running = asyncio.create_task(files.run(client))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(NotConnected):
        await running
    assert files.lines() == []

"""Runs a batch file: lines in, jobs out, answers into the output file as they come. Knows no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from sparkle.errors import ContractError, JobFailed, QueueFull
from sparkle.producers.batch_lines import BadLine, BatchLine, answer_line, parse
from sparkle.producers.batch_output import DUPLICATE, BatchOutput
from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.producers.running import abandon
from sparkle.schemas.job import Job


@dataclass(slots=True)
class Tally:
    """How far a batch is, in lines."""

    skipped: int = 0
    """Had their output already."""

    answered: int = 0
    failed: int = 0
    completion_tokens: int = 0
    """Of the lines answered in this run."""


def count_lines(path: Path) -> int:
    """Lines that are not blank."""
    with path.open("rb") as file:
        return sum(not line.isspace() for line in file)


def read_lines(path: Path) -> Iterator[BatchLine | BadLine]:
    """Each line that is not blank; the second line of a custom_id is a bad one."""
    first_lines: dict[str, int] = {}
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            if data.isspace():
                continue
            line = parse(number, data)
            if line.custom_id is not None:
                first = first_lines.setdefault(line.custom_id, number)
                if first != number:
                    line = BadLine(
                        number, line.custom_id, DUPLICATE, f"custom_id: the same as on line {first}"
                    )
            yield line


class BatchRun:
    """One run over a file's lines with a bounded number of jobs at once."""

    def __init__(
        self, client: Client, output: BatchOutput, *, concurrency: int, on_progress: Callable[[Tally], None]
    ) -> None:
        """`on_progress` is called after each line."""
        self.tally = Tally()
        self._client = client
        self._output = output
        self._places = asyncio.Semaphore(concurrency)
        self._on_progress = on_progress

    async def run(self, lines: Iterable[BatchLine | BadLine]) -> Tally:
        """Every line that has no output yet gets one: an answer or an error.

        Raises NotConnected and TopologyMissing, as no line could go on then. Cancelled, it cancels the jobs
        under way and leaves their lines without output, to be run again the next time.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    if self._output.has(line):
                        self.tally.skipped += 1
                        self._on_progress(self.tally)
                    elif isinstance(line, BadLine):
                        self._failed(line, line.code, line.message)
                    else:
                        await self._places.acquire()
                        group.create_task(self._answer(line))
        except BaseExceptionGroup as failed:
            # the first one stopped the others, and says why
            raise failed.exceptions[0] from None
        return self.tally

    async def _answer(self, line: BatchLine) -> None:
        try:
            handle = await self._submit(line.job)
            try:
                result = await handle.result()
            finally:
                await abandon(handle)
        except JobFailed as error:
            self._failed(line, error.code, str(error))
        except ContractError as error:
            self._failed(line, "invalid_line", str(error))
        else:
            self._output.append(answer_line(line, result, created_s=int(time.time())))
            self.tally.answered += 1
            self.tally.completion_tokens += result.usage.completion_tokens
            self._on_progress(self.tally)
        finally:
            self._places.release()

    async def _submit(self, job: Job) -> Handle:
        """A full queue is no fault of the line: it waits until there is room."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(QueueFull), wait=wait_random_exponential(multiplier=0.2, max=5)
        )
        return await attempts(self._client.submit, job)

    def _failed(self, line: BatchLine | BadLine, code: str, message: str) -> None:
        self._output.append_error(line, code, message)
        self.tally.failed += 1
        self._on_progress(self.tally)

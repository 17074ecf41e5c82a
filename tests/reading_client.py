"""A client process that reads answers as they come, and can be frozen while it does. Run as a program.

It submits jobs for the stand-in engine and prints `begun` when each has begun. Once its connection was lost
and is back, it reads on until every answer is `--ahead` tokens further, and prints its counts: an answer is
handed out in order, so what is ahead proves that nothing behind it is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.schemas.job import Job
from tests.engine_stand_in import text_of, token_of


class Reader:
    """One answer, read and checked token by token."""

    def __init__(self, handle: Handle, text_chars: int) -> None:
        self.num_tokens = 0
        self.begun = asyncio.Event()
        self.handle = handle
        self._text_chars = text_chars

    async def read(self) -> None:
        """Until cancelled. Raises AssertionError at the first token or text that is not the answer's."""
        async for chunk in self.handle:
            places = range(self.num_tokens, self.num_tokens + len(chunk.tokens))
            assert chunk.tokens == [token_of(chunk.job, place) for place in places]
            assert chunk.text == "".join(text_of(chunk.job, place, self._text_chars) for place in places)
            self.num_tokens += len(chunk.tokens)
            self.begun.set()


async def main() -> None:
    """Be the client."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nats", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--text-chars", type=int, required=True)
    parser.add_argument("--pace-ms", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--ahead", type=int, required=True)
    arguments = parser.parse_args()
    settings = ClientSettings(nats=arguments.nats, tenant="acme")
    connection = await Connection.open(settings.connection("reading-client"))
    back = asyncio.Event()
    connection.on_reconnect(back.set)
    prompt = f"pace_ms={arguments.pace_ms} text_chars={arguments.text_chars}"
    async with Client(connection, settings) as client:
        jobs = [Job(prompt=prompt, max_tokens=arguments.max_tokens) for _ in range(arguments.jobs)]
        readers = [Reader(await client.submit(job), arguments.text_chars) for job in jobs]
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(reader.read()) for reader in readers]
            for reader in readers:
                await reader.begun.wait()
            print("begun", flush=True)  # noqa: T201 - what the test waits for
            await back.wait()
            known = [reader.num_tokens for reader in readers]
            while any(  # noqa: ASYNC110 - counts that tell nobody
                reader.num_tokens < before + arguments.ahead
                for reader, before in zip(readers, known, strict=True)
            ):
                await asyncio.sleep(0.01)
            ended = sum(reader.handle.done for reader in readers)
            for task in reading:
                task.cancel()
        for reader in readers:
            await reader.handle.cancel()
        told = {"known": known, "read": [reader.num_tokens for reader in readers], "ended": ended}
        print(json.dumps(told), flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    asyncio.run(main())

"""An engine process without a model: speaks the frames over the same socket, writes tokens at a set pace.

`StandInEngine` is the worker's side; run as a program this file is the child. A job's answer follows from its
id alone, so a redelivered job gets the same tokens. Words of its prompt script what happens, all optional:

pace_ms=5       time before each token             crash_after=3   the process ends by itself at that token
think=2         tokens of reasoning first          fail=too_long   the job fails with this code
text_chars=9    characters a token                 retryable=1     ... and may be tried again
silent=1        nothing is ever written            skip_at=2       a token is left out: a faulty engine
hang_after=3    the process stops at that token, and is there
wait_after=3    the pass of that token never ends, for this job alone
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkle.engine.client import EngineProcess
from sparkle.engine.frames import (
    LENGTH_BYTES,
    Accepted,
    CancelRequest,
    Delta,
    EndConversation,
    Failed,
    Finished,
    Frame,
    Ping,
    Pong,
    Ready,
    Shutdown,
    Submit,
    decode,
    encode,
)
from sparkle.engine.settings import EngineSettings
from sparkle.errors import FailureCode
from sparkle.schemas import codec
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.job import Job

ROOT = Path(__file__).parents[1]
CRASH_CODE = 70
VOCABULARY = 8192


class StandInEngine(EngineProcess):
    """Starts this file instead of the engine; all else is the worker's real side."""

    def __init__(self, *, slots: int = 8, load_ms: float = 0.0, fails_with: int = 0) -> None:
        """Ready after `load_ms`; or it ends with the code `fails_with` instead, where that is not 0."""
        super().__init__(ROOT, EngineSettings(slots=slots))
        self._slots = slots
        self._load_ms = load_ms
        self._fails_with = fails_with

    def _command(self, fd: int) -> list[str]:
        own = [sys.executable, __file__, "--fd", str(fd), "--slots", str(self._slots)]
        return [*own, "--load-ms", str(self._load_ms), "--fails-with", str(self._fails_with)]


def token_of(job: str, index: int) -> int:
    """The token that the stand-in writes at this place of this job's answer."""
    digest = hashlib.blake2s(f"{job}:{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def text_of(job: str, index: int, chars: int = 0) -> str:
    """The text of that token; padded to `chars` characters where that is more."""
    return f"{token_of(job, index):x} ".ljust(chars, ".")


@dataclass(frozen=True, slots=True)
class Script:
    """What a job's prompt asks of the stand-in."""

    pace_ms: float = 0.0
    think: int = 0
    text_chars: int = 0
    silent: int = 0
    crash_after: int = -1
    skip_at: int = -1
    hang_after: int = -1
    wait_after: int = -1
    fail: str = ""
    retryable: int = 0

    @classmethod
    def read(cls, prompt: str) -> Script:
        """The words of the form name=value; all others are only a prompt."""
        words = dict(word.split("=", 1) for word in prompt.split() if "=" in word)
        return cls(
            pace_ms=float(words.get("pace_ms", "0")),
            think=int(words.get("think", "0")),
            text_chars=int(words.get("text_chars", "0")),
            silent=int(words.get("silent", "0")),
            crash_after=int(words.get("crash_after", "-1")),
            skip_at=int(words.get("skip_at", "-1")),
            hang_after=int(words.get("hang_after", "-1")),
            wait_after=int(words.get("wait_after", "-1")),
            fail=words.get("fail", ""),
            retryable=int(words.get("retryable", "0")),
        )


class Child:
    """The process's side: one task a job."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slots: int) -> None:
        self._reader = reader
        self._writer = writer
        self._slots = asyncio.Semaphore(slots)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Answer jobs until told to end, or until the worker has gone."""
        while (frame := await self._next()) is not None:
            match frame:
                case Submit():
                    job = codec.decode(frame.payload, Job)
                    self._tasks[frame.job] = asyncio.create_task(self._answer(job, len(frame.answered)))
                case CancelRequest():
                    task = self._tasks.pop(frame.job, None)
                    if task is not None:
                        task.cancel()
                case EndConversation():
                    # it keeps nothing
                    pass
                case Ping():
                    self._send(Pong())
                case Shutdown():
                    return
                case _:
                    raise AssertionError("a frame for the worker came to the engine")

    async def _next(self) -> Frame | None:
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            return decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def _send(self, frame: Frame) -> None:
        self._writer.write(encode(frame))

    async def _answer(self, job: Job, answered: int) -> None:
        script = Script.read(job.prompt or "")
        prompt_tokens = len((job.prompt or "").split())
        async with self._slots:
            if script.fail:
                self._send(
                    Failed(
                        job=job.id,
                        code=FailureCode(script.fail),
                        message="as scripted",
                        retryable=bool(script.retryable),
                    )
                )
                return
            self._send(Accepted(job=job.id, prompt_tokens=prompt_tokens))
            if script.silent:
                await asyncio.Event().wait()
            await self._write(job, script, answered)
            self._tasks.pop(job.id, None)
            self._send(
                Finished(
                    job=job.id,
                    finish_reason=FinishReason.LENGTH,
                    prompt_tokens=prompt_tokens,
                    cached_tokens=0,
                    completion_tokens=job.max_tokens,
                )
            )

    def _logprobs(self, job: Job, text: str, *, is_new: bool) -> list[list[Any]] | None:
        if job.sampling.logprobs is None or not is_new:
            return None
        return [[-1.0, text, None, [[7, -1.0, "\\xe2\\x80", b"\xe2\x80"]]]]

    async def _write(self, job: Job, script: Script, answered: int) -> None:
        chars = dict.fromkeys(Channel, 0)
        for index in range(job.max_tokens):
            # yields even without a pace, so that a cancel is seen; what was answered before takes no time
            await asyncio.sleep(script.pace_ms / 1000 if index >= answered else 0.0)
            if index == script.crash_after:
                await self._writer.drain()
                os._exit(CRASH_CODE)
            if index == script.hang_after:
                await self._writer.drain()
                time.sleep(3_600.0)  # noqa: ASYNC251 - nothing else goes on either
            if index == script.wait_after:
                await asyncio.Event().wait()
            if index == script.skip_at:
                continue
            channel = Channel.REASONING if index < script.think else Channel.ANSWER
            text = text_of(job.id, index, script.text_chars)
            self._send(
                Delta(
                    job=job.id,
                    first_index=index,
                    tokens=[token_of(job.id, index)],
                    text=text,
                    text_start=chars[channel],
                    channel=channel,
                    logprobs=self._logprobs(job, text_of(job.id, index), is_new=index >= answered),
                )
            )
            chars[channel] += len(text)


async def main() -> None:
    """Be the child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--load-ms", type=float, required=True)
    parser.add_argument("--fails-with", type=int, required=True)
    arguments = parser.parse_args()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=arguments.fd))
    await asyncio.sleep(arguments.load_ms / 1000)
    if arguments.fails_with:
        sys.exit(arguments.fails_with)
    ready = Ready(
        model="stand-in", slots=arguments.slots, max_context_tokens=4096, kv_tokens=65_536, load_s=0.0
    )
    writer.write(encode(ready))
    await Child(reader, writer, arguments.slots).serve()


if __name__ == "__main__":
    asyncio.run(main())

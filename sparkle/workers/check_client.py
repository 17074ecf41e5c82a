"""The worker's side of the process that checks finished answers: asks, waits, ends it. Knows no job."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

from sparkle.schemas.packing import pack

CHECK_S = 2.0
"""Most answers take under a millisecond; what takes longer than this is not worth the wait of others."""

START_S = 30.0


class CheckProcess:
    """One process, begun with the first answer and again where one has ended it. Answers take turns."""

    def __init__(self, *, check_s: float = CHECK_S) -> None:
        self._check_s = check_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def holds(self, checks: Sequence[tuple[str, str]]) -> bool | None:
        """Whether each answer is valid under its schema, both JSON texts; None where that cannot be said."""
        async with self._turn:
            try:
                process = self._process or await self._begin()
                async with asyncio.timeout(self._check_s):
                    verdict = await _ask(process, checks)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                await self._end()
                return None
            # what came half way would be taken for the next one's
            except asyncio.CancelledError:
                await self._end()
                raise
        return {b"v": True, b"i": False}.get(verdict)

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _begin(self) -> asyncio.subprocess.Process:
        # what a failing check prints may quote the answer: nobody reads it
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sparkle.text.check_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(START_S):
            await _verdict(process)
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _ask(process: asyncio.subprocess.Process, checks: Sequence[tuple[str, str]]) -> bytes:
    assert process.stdin is not None
    body = pack({"checks": [list(check) for check in checks]})
    process.stdin.write(struct.pack(">I", len(body)) + body)
    await process.stdin.drain()
    return await _verdict(process)


async def _verdict(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readexactly(1)

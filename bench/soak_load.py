"""Jobs of every kind and every fate, one after the other, for as long as one likes. Knows no measurement."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from sparkle.errors import JobFailed
from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import MAX_CONTEXT_TOKENS, Job

PROMPT = "The alert says that somebody logged in at 3 am from another country, and"
MAX_TOKENS = 24
MAX_PAUSE_S = 0.05
DEADLINE_S = 0.05


class SoakLoad:
    """`askers` ask at once; each draws what it asks next."""

    def __init__(self, client: Client, unix_s: Callable[[], float], *, askers: int, seed: int = 20) -> None:
        self.fates: Counter[str] = Counter()
        """Jobs that have their end, by what was done with them and how it came out."""
        self._client = client
        self._unix_s = unix_s
        self._chance = random.Random(seed)
        self._askers = askers
        self._kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "streamed": self._streamed,
            "awaited": self._awaited,
            "cancelled": self._cancelled,
            "late": self._late,
            "too_long": self._too_long,
            "conversation": self._conversation,
            "twice": self._twice,
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop; returns when every job has its end. Raises what no job may end with."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._askers):
                group.create_task(self._ask_on(stop))

    async def each_once(self) -> None:
        """One job of every kind, one after the other."""
        for kind in self._kinds:
            await self._ask(kind)

    async def _ask_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._ask(self._chance.choice(list(self._kinds)))
            await asyncio.sleep(self._chance.uniform(0, MAX_PAUSE_S))

    async def _ask(self, kind: str) -> None:
        try:
            fate = await self._kinds[kind]()
        except JobFailed as failed:
            fate = failed.code.value
        self.fates[f"{kind}: {fate}"] += 1

    def _job(self, **fields: object) -> Job:
        asked = {"prompt": PROMPT, "max_tokens": self._chance.randint(1, MAX_TOKENS), **fields}
        return Job.model_validate(asked)

    async def _streamed(self) -> str:
        return await _whole(await self._client.submit(self._job()))

    async def _awaited(self) -> str:
        """Nobody reads its stream."""
        return (await (await self._client.submit(self._job())).result()).finish_reason.value

    async def _cancelled(self) -> str:
        handle = await self._client.submit(self._job(max_tokens=MAX_TOKENS))
        await anext(handle)
        await handle.cancel()
        return (await handle.result()).finish_reason.value

    async def _late(self) -> str:
        deadline_ms = int((self._unix_s() + DEADLINE_S) * 1000)
        job = self._job(max_tokens=MAX_TOKENS, deadline_ms=deadline_ms)
        return (await (await self._client.submit(job)).result()).finish_reason.value

    async def _too_long(self) -> str:
        """Refused by the worker: only that knows how long is too long for it."""
        job = self._job(prompt=None, prompt_tokens=[7] * (MAX_CONTEXT_TOKENS // 2))
        return (await (await self._client.submit(job)).result()).finish_reason.value

    async def _conversation(self) -> str:
        name = f"c-{new_job_id()}"
        for _ in range(2):
            await _whole(await self._client.submit(self._job(conversation=name)))
        await self._client.end_conversation(name)
        return "ended"

    async def _twice(self) -> str:
        """The same id, submitted twice: one job, and one handle."""
        job = self._job()
        first, second = await asyncio.gather(self._client.submit(job), self._client.submit(job))
        assert first is second
        return await _whole(first)


async def _whole(handle: Handle) -> str:
    """Read an answer, which must be its result's."""
    tokens = [token for chunk in [chunk async for chunk in handle] for token in chunk.tokens]
    result = await handle.result()
    if tokens != result.tokens:
        raise RuntimeError(f"job {handle.job_id}: the stream is not the answer")
    return result.finish_reason.value

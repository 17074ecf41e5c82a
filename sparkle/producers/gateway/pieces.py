"""The answers of one request as one stream: a chunk or an end, and whose. Knows no form of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from sparkle.errors import SparkleError
from sparkle.producers.handle import Handle
from sparkle.schemas.answer import Chunk, Result

Piece = tuple[int, Chunk | Result]
"""Which choice, and what came of it."""


async def pieces(handles: Sequence[Handle]) -> AsyncGenerator[Piece]:
    """What comes, as it comes; of each choice its result last. Raises what a handle raises."""
    if len(handles) > 1:
        async for piece in _side_by_side(handles):
            yield piece
        return
    async for chunk in handles[0]:
        yield 0, chunk
    yield 0, await handles[0].result()


async def _side_by_side(handles: Sequence[Handle]) -> AsyncGenerator[Piece]:
    # a place for each: what is not taken yet is merged in its handle
    queue: asyncio.Queue[Piece | SparkleError] = asyncio.Queue(len(handles))

    async def read(index: int, handle: Handle) -> None:
        try:
            async for chunk in handle:
                await queue.put((index, chunk))
            await queue.put((index, await handle.result()))
        except SparkleError as error:
            await queue.put(error)

    readers = [asyncio.create_task(read(index, handle)) for index, handle in enumerate(handles)]
    num_left = len(handles)
    try:
        while num_left:
            piece = await queue.get()
            if isinstance(piece, SparkleError):
                raise piece
            num_left -= isinstance(piece[1], Result)
            yield piece
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

"""How a writer makes room for others who write the same value. Knows no value."""

from __future__ import annotations

import asyncio
import random

from sparkle.errors import PublishUncertain

MOST_CONFLICTS = 40
"""Each is another writer's success, or a copy that is behind: so many in a row are a sign of trouble."""

_FIRST_S, _LONGEST_S = 0.001, 0.1


async def pause(attempt: int) -> None:
    """Wait for a moment after the conflict of this number, from 0: longer each time, by chance."""
    await asyncio.sleep(random.uniform(0.0, min(_FIRST_S * 2**attempt, _LONGEST_S)))


def contended(what: str) -> PublishUncertain:
    """The error of a writer who gives up."""
    return PublishUncertain(f"{what} was written by others {MOST_CONFLICTS} times in a row; try again")

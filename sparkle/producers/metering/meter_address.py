"""What an error of the metering account says beside itself: where its address is given. Opens nothing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from sparkle.errors import NotConnected, TopologyMissing


@contextmanager
def named_as_meter() -> Generator[None]:
    """Raises what is raised within, with the flag: it has an address of its own beside the queue's."""
    try:
        yield
    except (NotConnected, TopologyMissing) as error:
        raise type(error)(
            f"keys and allowances: {error}; --meter-nats or [metering] nats says where they are, "
            "[meter_bus] as whom"
        ) from None

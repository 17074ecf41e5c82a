"""Makes sure that the server can write no message to a disk. Knows no stream."""

from __future__ import annotations

from sparkle.errors import ConfigError, NotConnected
from sparkle.queue.api import as_count, as_table, ask
from sparkle.queue.connection import Connection

UNLIMITED = -1


async def require_memory(connection: Connection) -> None:
    """Returns where the account has no room for files, so that the server itself refuses a stream in one.

    Raises ConfigError where it has, NotConnected where JetStream does not say.
    """
    account = await ask(connection, "INFO")
    if account.code:
        raise NotConnected(f"JetStream cannot tell what the account may store (code {account.code})")
    # an account of a decentralised set-up has limits by number of copies
    tiers = [as_table(tier).get("limits") for tier in account.table("tiers").values()]
    for limits in (account.fields.get("limits"), *tiers):
        room_bytes = as_count(as_table(limits).get("max_storage"))
        if room_bytes:
            room = "any number of" if room_bytes == UNLIMITED else f"{room_bytes:,}"
            raise ConfigError(
                f"the account may store {room} bytes in files, but jobs and answers stay in memory: "
                "set `max_file: 0` for it in the server's configuration"
            )

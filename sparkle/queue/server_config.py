"""What a nats-server is told, in its own language: limits, accounts, no trace. Knows no users and no process.

Three accounts: SPARKLE has the content and may store nothing on a disk, METER has counts and no content and
may, SYS is the server's own. One thing passes from one to another: usage records, out of SPARKLE into METER,
as a service, so that whoever sends one hears that it is stored.
"""

from __future__ import annotations

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The server warns above this, and a 262,144-token job fits."""

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""What may wait for one client that reads too slowly, before its connection is ended."""

LIMITS = f"""\
# a job of 262,144 tokens fits; the server warns above
max_payload: {MAX_PAYLOAD_BYTES}
# what waits for a client that reads too slowly: beyond, its connection ends, and it asks for what it missed
max_pending: {MAX_PENDING_BYTES}
write_deadline: "10s"
ping_interval: "10s"
ping_max: 2
# either would write prompts and answers to the log
debug: false
trace: false
"""


def accounts(*, content_users: str, meter_users: str, max_memory_bytes: int, max_file_bytes: int) -> str:
    """The accounts with their users, each given as the lines that stand in its block.

    `max_memory_bytes` and `max_file_bytes` are what all streams of SPARKLE and of METER may reserve, every
    copy counted.
    """
    return f"""\
accounts {{
  SYS {{ }}
  SPARKLE {{
    # no file: the server itself refuses a stream on a disk
    jetstream {{ max_mem: {max_memory_bytes}, max_file: 0 }}
    imports: [ {{ service: {{ account: METER, subject: "usage.>" }} }} ]
    {content_users}
  }}
  METER {{
    jetstream {{ max_mem: 0, max_file: {max_file_bytes} }}
    exports: [ {{ service: "usage.>", accounts: [SPARKLE] }} ]
    {meter_users}
  }}
}}
system_account: SYS
"""

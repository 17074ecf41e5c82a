"""The reader of the wire: any bytes in a subject, any cut of the stream, and the messages come out whole."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from sparkle.queue.receiving import Announced, LineReader, read_announced

# the server cuts its lines at these; every other byte can be in a subject
subject_bytes = st.lists(st.integers(0, 255).filter(lambda byte: byte not in b" \t\r\n"), min_size=1).map(
    bytes
)
Message = tuple[bytes, int, bytes, bytes, bytes]
messages = st.tuples(
    subject_bytes, st.integers(1, 99), st.just(b"") | subject_bytes, st.binary(max_size=40), st.binary()
)


def _wire(message: Message) -> bytes:
    subject, sid, reply, headers, payload = message
    parts = [subject, b"%d" % sid, *([reply] if reply else [])]
    size = b"%d" % (len(headers) + len(payload))
    sizes = [b"%d" % len(headers), size] if headers else [size]
    kind = b"HMSG" if headers else b"MSG"
    return b" ".join([kind, *parts, *sizes]) + b"\r\n" + headers + payload + b"\r\n"


class _Heard:
    """A receiver's place: keeps what the reader hands on."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lines: list[bytes] = []
        self.reader = LineReader(self._on_line, self._on_body)

    async def _on_line(self, line: bytes) -> Announced | None:
        kind, _, rest = line.partition(b" ")
        if kind in (b"MSG", b"HMSG"):
            return read_announced(rest, with_headers=kind == b"HMSG")
        self.lines.append(line)
        return None

    async def _on_body(self, message: Announced, body: bytes) -> None:
        cut = message.header_bytes
        self.messages.append((message.subject, message.sid, message.reply, body[:cut], body[cut:]))


@given(st.lists(messages, max_size=6), st.integers())
async def test_messages_come_out_whole_however_the_stream_is_cut(sent: list[Message], seed: int) -> None:
    draw = random.Random(seed)
    stream = b"".join(part for message in sent for part in (_wire(message), b"PING\r\n"))
    heard = _Heard()
    while stream:
        cut = draw.randint(1, draw.choice((3, len(stream))))
        await heard.reader.parse(stream[:cut])
        stream = stream[cut:]
    assert heard.messages == sent
    assert heard.lines == [b"PING"] * len(sent)


async def test_after_a_reset_the_stream_starts_anew() -> None:
    heard = _Heard()
    await heard.reader.parse(b"MSG a 1 100\r\nhalf of a body")
    heard.reader.reset()
    await heard.reader.parse(_wire((b"b", 2, b"", b"", b"whole")))
    assert heard.messages == [(b"b", 2, b"", b"", b"whole")]


@pytest.mark.parametrize("rest", [b"", b"a", b"a 1", b"a b 1", b"a 1 x"])
def test_a_message_line_without_its_numbers_is_an_error(rest: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_announced(rest, with_headers=False)

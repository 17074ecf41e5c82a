"""`python -m sparkle.text.check_process`: answers in on standard input, one byte of verdict each out.

A hostile schema may keep it busy for ever: it may be ended over any answer. Keeps nothing.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from functools import lru_cache
from typing import BinaryIO, cast

from sparkle.errors import GrammarError
from sparkle.quiet.process import end_with_parent, keep_content_in
from sparkle.schemas.packing import unpack
from sparkle.text.answer_check import AnswerCheck

VALID, INVALID, UNKNOWN, READY = b"v", b"i", b"u", b"r"


def main() -> None:
    """Say READY, then judge answers until standard input ends."""
    keep_content_in()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(stream: BinaryIO, verdicts: BinaryIO) -> None:
    """A map of `checks` each time, of which each is a schema's JSON text and an answer's."""
    _say(READY, verdicts)
    while head := stream.read(4):
        (length,) = struct.unpack(">I", head)
        checks = cast("list[list[str]]", unpack(stream.read(length))["checks"])
        _say(judge(checks), verdicts)


def judge(checks: list[list[str]]) -> bytes:
    """INVALID if one of the answers is; UNKNOWN where that cannot be said of one and none is."""
    found = [_holds(schema, answer) for schema, answer in checks]
    if False in found:
        return INVALID
    return UNKNOWN if None in found else VALID


def _holds(schema: str, answer: str) -> bool | None:
    try:
        return _check(schema).holds(answer)
    except (GrammarError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _check(schema: str) -> AnswerCheck:
    """The schema's check; most jobs of a tenant have one of a few schemas."""
    return AnswerCheck(json.loads(schema))


def _say(verdict: bytes, verdicts: BinaryIO) -> None:
    verdicts.write(verdict)
    verdicts.flush()


if __name__ == "__main__":
    main()

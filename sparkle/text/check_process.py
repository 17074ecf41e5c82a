"""`python -m sparkle.text.check_process`: answers in on standard input, one byte of verdict each out.

A hostile schema may keep it busy for ever: it may be ended over any answer. Keeps no answer.
"""

from __future__ import annotations

import json
import select
import signal
import struct
import sys
import time
from typing import BinaryIO, cast

from sparkle.errors import GrammarError
from sparkle.quiet.process import end_with_parent, keep_content_in
from sparkle.schemas.packing import unpack
from sparkle.text.answer_check import AnswerCheck

KEPT_SCHEMAS = 64
KEPT_S = 300.0
"""Schemas are content: all are forgotten so often, and most jobs of a tenant have one of a few."""

VALID, INVALID, UNKNOWN, READY = b"v", b"i", b"u", b"r"


def main() -> None:
    """Say READY, then judge answers until standard input ends."""
    keep_content_in()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(stream: BinaryIO, verdicts: BinaryIO) -> None:
    """A map of `checks` each time, of which each is a schema's JSON text and an answer's."""
    judge = Judge()
    _say(READY, verdicts)
    while True:
        # the next one comes only behind the verdict on the last, so nothing waits in a buffer
        if not select.select([stream], [], [], judge.forget_old(time.monotonic()))[0]:
            continue
        head = stream.read(4)
        if not head:
            return
        (length,) = struct.unpack(">I", head)
        checks = cast("list[list[str]]", unpack(stream.read(length))["checks"])
        _say(judge.verdict(checks), verdicts)


class Judge:
    """Judges answers, and knows the schemas of the last ones for a while: to read one takes milliseconds."""

    def __init__(self) -> None:
        self._known: dict[str, AnswerCheck] = {}
        self._since_s: float | None = None

    @property
    def num_schemas(self) -> int:
        """How many it knows now."""
        return len(self._known)

    def forget_old(self, now_s: float) -> float | None:
        """Forget all schemas where it is time; returns the seconds until it is, None where none is known."""
        if self._since_s is not None and now_s - self._since_s >= KEPT_S:
            self._known.clear()
        if not self._known:
            self._since_s = None
            return None
        self._since_s = now_s if self._since_s is None else self._since_s
        return self._since_s + KEPT_S - now_s

    def verdict(self, checks: list[list[str]]) -> bytes:
        """INVALID if one of the answers is; UNKNOWN where that cannot be said of one and none is."""
        found = [self._holds(schema, answer) for schema, answer in checks]
        if False in found:
            return INVALID
        return UNKNOWN if None in found else VALID

    def _holds(self, schema: str, answer: str) -> bool | None:
        try:
            return self._check(schema).holds(answer)
        except (GrammarError, RecursionError):
            return None

    def _check(self, schema: str) -> AnswerCheck:
        check = self._known.get(schema)
        if check is None:
            check = AnswerCheck(json.loads(schema))
            if len(self._known) >= KEPT_SCHEMAS:
                del self._known[next(iter(self._known))]
            self._known[schema] = check
        return check


def _say(verdict: bytes, verdicts: BinaryIO) -> None:
    verdicts.write(verdict)
    verdicts.flush()


if __name__ == "__main__":
    main()

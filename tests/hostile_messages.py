"""Messages that a hostile or broken sender could send, from a seed: damaged ones of each kind, and noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

from sparkle.schemas.message import VERSION

Map = dict[Any, Any]
"""A message's fields: hostile keys are not always text."""

CANARY = "Canary 51c9"
"""Stands for content: it is in every text and key made here, and must come out nowhere. It is no name: those
of workers and conversations are told."""

_LIST: list[Any] = []
_MAP: Map = {}


class HostileProducer:
    """Makes one message after the other; the same seed makes the same ones."""

    def __init__(self, seed: int, *, tenant: str, region: str) -> None:
        self._random = random.Random(seed)
        self._tenant = tenant
        self._region = region

    def message(self, job: str) -> bytes:
        """Bytes to put under the subject of `job`: mostly a damaged job, at times not even msgpack."""
        return self.damaged(self._job(job))

    def of(self, kind: str, job: str) -> bytes:
        """A message of this kind of the contract that concerns `job`, mostly damaged."""
        fields = self._job(job) if kind == "job" else self._others(job)[kind]
        fields = {"kind": kind, "v": VERSION, **fields}
        return pack(fields) if self._random.random() < 0.1 else self.damaged(fields)

    def damaged(self, fields: Map) -> bytes:
        """These fields, broken in some places or as a whole."""
        for _ in range(self._random.choice((1, 1, 2, 5))):
            self._damage(fields)
        data = pack(fields)
        break_bytes: tuple[Callable[[bytes], bytes], ...] = (self._cut, self._flip, self._noise, self._append)
        return self._random.choice(break_bytes)(data) if self._random.random() < 0.2 else data

    def _job(self, job: str) -> Map:
        draw = self._random
        fields: Map = {
            "kind": "job",
            "v": VERSION,
            "id": job,
            "tenant": self._tenant,
            "region": self._region,
            "max_tokens": draw.choice((1, 2, 3)),
            "sampling": {"temperature": 1.0, "stop": [CANARY], "stop_tokens": [1], "seed": 7},
            "deadline_ms": 2**52,
        }
        turn = {"role": "user", "content": draw.choice((CANARY, [{"type": "text", "text": CANARY}]))}
        prompts = ({"prompt": CANARY}, {"prompt_tokens": [1, 2, 3]}, {"messages": [turn, dict(turn)]})
        return {**fields, **draw.choice(prompts)}

    def _others(self, job: str) -> dict[str, Map]:
        """Sound fields of all other kinds."""
        draw = self._random
        worker, attempt = {"worker": "w-1"}, {"attempt": draw.choice((1, 2, 9))}
        names = ("prompt_tokens", "cached_tokens", "completion_tokens", "drafted_tokens", "accepted_tokens")
        counts, times = dict.fromkeys(names, 1), {"queue_s": 0.0, "total_s": 1.0}
        usage = {**counts, **times, "first_token_s": 0.1}
        logprobs = [{"logprob": -0.5, "text": CANARY, "top": [{"token": 1, "logprob": -0.5, "octets": b"a"}]}]
        piece = {"first_index": 0, "tokens": [7], "text": CANARY, "text_start": 0, "channel": "answer"}
        whole = {"text": CANARY, "tokens": [7], "finish_reason": "stop", "usage": usage, "logprobs": logprobs}
        of_job: dict[str, Map] = {
            "chunk": {"seq": draw.choice((0, 1, 2**40)), **piece, **attempt, **worker, "logprobs": logprobs},
            "result": {**whole, **attempt, **worker},
            "failure": {"code": "engine_error", "message": "?", "retryable": False, **attempt},
            "ask": {"from_index": draw.choice((0, 1, 2**40))},
            "answered": {"tokens": [7], "logprobs": logprobs, **attempt},
            "cancel": {},
            "resend": {"from_seq": draw.choice((0, 1, 2**40)), **attempt},
            "offer": {"priority": "p0", "wait_ms": draw.choice((0, 5))},
            "usage": {
                **{"tenant": self._tenant, "region": self._region, "priority": "p0", "outcome": "stop"},
                **{**counts, **times, "finished_ms": 1},
                **attempt,
                **worker,
            },
        }
        beat = {"state": "ready", "model": "m", "slots": 1, "running": [job], "sent_ms": 1}
        return {
            **{kind: {"job": job, **fields} for kind, fields in of_job.items()},
            "heartbeat": {"region": self._region, **beat, **worker},
            "end_conversation": {"conversation": "c-1"},
            "will": {"process": "0123456789abcdef", "leases": ["$JS.ACK.JOBS.local-p0.1.1.1.1.0"], **worker},
        }

    def _damage(self, fields: Map) -> None:
        """Change one place, anywhere in the job: another value, an unknown field, a lost one."""
        draw = self._random
        place: Map | list[Any] = fields
        while draw.random() < 0.6 and (inner := _containers(place)):
            place = draw.choice(inner)
        if isinstance(place, list):
            place[draw.randrange(len(place))] = self._junk()
            return
        known = [*fields, "thinking", "tools", "response_format", "conversation", "traceparent", "logprobs"]
        kind = draw.random() if place else 0.7
        if kind < 0.6:
            place[draw.choice(list(place))] = self._junk()
        elif kind < 0.75:
            place[draw.choice((CANARY, CANARY.encode(), b"\xff" + CANARY.encode(), ""))] = self._junk()
        elif kind < 0.9:
            place[draw.choice(known)] = self._junk()
        else:
            del place[draw.choice(list(place))]

    def _junk(self) -> object:
        draw = self._random
        junk: list[object] = [
            *(None, True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, 5e-324),
            *(float("nan"), float("inf"), "", " ", "\x00", CANARY, CANARY * 99, CANARY.encode(), b"\xff\xfe"),
            *("1", "9" * 5000, "1e5", "job", "result", "1.0", "1.9", "2.0", "99999.0", "\u0661.0", "p0"),
            *(
                _LIST,
                _MAP,
                [_LIST],
                {"": _MAP},
                [CANARY] * 40,
                {CANARY: {CANARY: b"\xff"}},
                {b"\xff": CANARY},
            ),
            *([_MAP] * 30, [None] * 5000, "\U000e0001\u200b\u0301\ue000", self._nested()),
        ]
        return draw.choice(junk)

    def _nested(self) -> object:
        value: object = CANARY
        for _ in range(self._random.choice((3, 60, 400))):
            value = [value] if self._random.random() < 0.5 else {CANARY: value}
        return value

    def _cut(self, data: bytes) -> bytes:
        return data[: self._random.randrange(len(data))]

    def _flip(self, data: bytes) -> bytes:
        place = self._random.randrange(len(data))
        return data[:place] + self._random.randbytes(1) + data[place + 1 :]

    def _noise(self, data: bytes) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 9, 300)))

    def _append(self, data: bytes) -> bytes:
        return data + self._random.choice((b"\x00", b"\xc1", data))


def pack(fields: Map) -> bytes:
    """As msgpack, without a look at what it is."""
    return cast(bytes, msgpack.packb(fields))  # pyright: ignore[reportUnknownMemberType]


def _containers(place: Map | list[Any]) -> list[Map | list[Any]]:
    """The maps and arrays right in this one that have something in them."""
    values: list[Any] = list(place.values()) if isinstance(place, dict) else place
    return [value for value in values if isinstance(value, dict | list) and value]

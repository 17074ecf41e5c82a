"""What worker and engine process tell each other: small messages as length-prefixed msgpack. Knows no queue.

A frame is four bytes of length, big-endian, then a msgpack map with a `kind`. Both ends are the same version
of this program, so frames carry none; content in them never leaves the two processes' memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, get_args

from sparkle.errors import EngineError, FailureCode
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.packing import pack, unpack

MAX_FRAME_BYTES = 64 * 1024 * 1024
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Worker to engine: answer this job."""

    kind: ClassVar[str] = "submit"
    job: str
    payload: bytes
    """The job's own message, as it came from the queue, already checked by the worker."""

    answered: list[int] = field(default_factory=list[int])
    """The answer's first tokens, which an earlier attempt wrote: it is gone on with behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """Worker to engine: end this job without an answer; nothing is sent for it afterwards."""

    kind: ClassVar[str] = "cancel"
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndConversation:
    """Worker to engine: forget what is kept of a conversation, and keep nothing of its running jobs."""

    kind: ClassVar[str] = "end_conversation"
    tenant: str | None
    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Worker to engine: say that passes go on."""

    kind: ClassVar[str] = "ping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Engine to worker: the answer to a Ping, between two passes."""

    kind: ClassVar[str] = "pong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Worker to engine: end the process."""

    kind: ClassVar[str] = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Engine to worker, once: the model is loaded, and this is what was allocated."""

    kind: ClassVar[str] = "ready"
    model: str
    slots: int
    max_context_tokens: int
    kv_tokens: int
    load_s: float
    memory: list[str] = field(default_factory=list[str])
    """The memory plan, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Engine to worker, in place of Ready: the model or a setting cannot be used."""

    kind: ClassVar[str] = "refused"
    reason: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Engine to worker: the job's prompt is tokenised and fits."""

    kind: ClassVar[str] = "accepted"
    job: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Engine to worker: more of an answer. Fields as in schemas.answer.Chunk."""

    kind: ClassVar[str] = "delta"
    job: str
    first_index: int
    tokens: list[int]
    text: str
    text_start: int
    channel: Channel
    logprobs: list[list[Any]] | None = None
    """One entry a token: [log probability, text, octets, [[token, log probability, text, octets], …]];
    text and octets as in schemas.answer.Spelling."""
    calls: list[list[Any]] = field(default_factory=list[list[Any]])
    """Pieces of tool calls: [call, name or None, JSON text, code points of the call's JSON before it]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Engine to worker: the answer is complete; all its deltas have been sent."""

    kind: ClassVar[str] = "finished"
    job: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    enforced: bool = False
    """Whether the answer was kept to all that its shape says, to the end."""
    drafts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By proposer: passes with a draft of its, tokens drafted, and of these the accepted ones."""

    @property
    def drafted_tokens(self) -> int:
        """Tokens guessed."""
        return sum(drafted for _, drafted, _ in self.drafts.values())

    @property
    def accepted_tokens(self) -> int:
        """Of these, the ones that are part of the answer."""
        return sum(accepted for _, _, accepted in self.drafts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Engine to worker: what it keeps of jobs that ended or gave way, whenever that has changed."""

    kind: ClassVar[str] = "cached"
    checkpoints: int = 0
    """States held now, each in a slot."""

    evicted: int = 0
    """States that left since the start because memory was needed."""

    preempted: int = 0
    """How often a job has given way to one of a shorter class since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Engine to worker: the job ended without an answer."""

    kind: ClassVar[str] = "failed"
    job: str
    code: FailureCode
    message: str
    retryable: bool


ToEngine = Submit | CancelRequest | EndConversation | Ping | Shutdown
ToWorker = Ready | Refused | Accepted | Delta | Finished | Failed | Cached | Pong
Frame = ToEngine | ToWorker

_KINDS: dict[str, type[Frame]] = {frame.kind: frame for frame in (*get_args(ToEngine), *get_args(ToWorker))}


def encode(frame: Frame) -> bytes:
    """The frame with its length in front."""
    fields = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    body = pack({"kind": frame.kind, **fields})
    if len(body) > MAX_FRAME_BYTES:
        raise EngineError(f"frame has {len(body)} bytes but at most {MAX_FRAME_BYTES} fit")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(prefix: bytes) -> int:
    """Bytes of the frame behind its first LENGTH_BYTES. Raises EngineError over MAX_FRAME_BYTES."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        raise EngineError(f"frame has {length} bytes but at most {MAX_FRAME_BYTES} are read")
    return length


def decode(body: bytes) -> Frame:
    """The frame in `body` (without its length). Raises EngineError or InvalidMessage."""
    fields = unpack(body)
    frame = _KINDS.get(str(fields.pop("kind", None)))
    if frame is None:
        raise EngineError("frame of an unknown kind: worker and engine are of different versions")
    try:
        # which fields it must have, its own class says
        return frame(**cast("dict[str, Any]", _with_enums(fields)))
    except (TypeError, ValueError):
        raise EngineError(
            f"frame {frame.kind} has other fields: worker and engine are of different versions"
        ) from None


def _with_enums(fields: dict[str, object]) -> dict[str, object]:
    enums: dict[str, type[Channel | FinishReason | FailureCode]] = {
        "channel": Channel,
        "finish_reason": FinishReason,
        "code": FailureCode,
    }
    return {name: enums[name](str(value)) if name in enums else value for name, value in fields.items()}

"""What producers, workers and operators tell each other beside the answer: metadata only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sparkle.errors import FailureCode
from sparkle.schemas.answer import Count, FinishReason, Seconds
from sparkle.schemas.message import ConversationId, JobId, Message, Milliseconds, Name
from sparkle.schemas.priority import PriorityClass


class Cancel(Message):
    """The producer no longer wants this job. Stored as a tombstone, for `control_max_age_s`."""

    kind: Literal["cancel"] = "cancel"
    job: JobId
    """The job to end."""


class EndConversation(Message):
    """The producer will not go on with a conversation: what workers keep of it can go."""

    kind: Literal["end_conversation"] = "end_conversation"
    conversation: ConversationId
    """The conversation to forget."""


class Resend(Message):
    """A producer asks a worker for chunks that did not arrive."""

    kind: Literal["resend"] = "resend"
    job: JobId
    """Whose chunks."""

    attempt: Annotated[int, Field(ge=1)]
    """Of which delivery."""

    from_seq: Count
    """The first chunk wanted; all later ones follow."""


class Offer(Message):
    """A worker that pulled a follow-up asks the conversation's home whether it takes the job."""

    kind: Literal["offer"] = "offer"
    job: JobId
    """Which job."""

    priority: PriorityClass
    """Its class."""

    wait_ms: Annotated[int, Field(ge=0, le=60_000)]
    """How long it may wait there for a slot."""


AckSubject = Annotated[str, StringConstraints(pattern=r"^\$JS\.ACK\.JOBS\.[A-Za-z0-9_.-]{1,200}$")]
"""Where the fate of a job's message is told."""


class Will(Message):
    """A worker tells another one what it holds, to be handed back to the queue should it die."""

    kind: Literal["will"] = "will"
    worker: Name
    """Whose will it is."""

    process: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    """Which process of that name: one that was started again does not hold these jobs."""

    leases: Annotated[list[AckSubject], Field(max_length=4096)]
    """Of each job held; none takes the will back."""


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Heartbeat(Message):
    """A worker is alive: who, where, how full."""

    kind: Literal["heartbeat"] = "heartbeat"
    worker: Name
    """Which worker."""

    region: Name
    """Where it serves."""

    state: WorkerState
    """Where it is in its life."""

    model: Annotated[str, StringConstraints(max_length=128)]
    """Name of the model it serves."""

    slots: Count
    """Jobs it can run at once."""

    running: Annotated[list[JobId], Field(max_length=4096)]
    """Jobs it holds now."""

    sent_ms: Milliseconds
    """When this was sent."""


class UsageRecord(Message):
    """What a finished job used, for metering: ids, counts and times, never content."""

    kind: Literal["usage"] = "usage"
    job: JobId
    tenant: Name
    region: Name
    worker: Name
    attempt: Annotated[int, Field(ge=1)]
    priority: PriorityClass
    outcome: FinishReason | FailureCode
    """How the job ended."""

    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count
    drafted_tokens: Count
    accepted_tokens: Count
    queue_s: Seconds
    total_s: Seconds
    finished_ms: Milliseconds

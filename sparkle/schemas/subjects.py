"""Names on the queue: subjects, streams, consumers. Strings only; knows no connection.

jobs.<region>.<class>.<tenant>.<job>    JOBS      work queue, one message a job
result.<tenant>.<job>                   RESULTS   the stored end of a job
ctl.cancel.<tenant>.<job>               CONTROL   tombstones of cancelled jobs
answered.<tenant>.<job>                 ANSWERED  how far an answer has come whose producer is away
reply.<tenant>.<job>                    live      chunks, and what the job's worker asks its producer
told.<tenant>.<job>.<question>          live      what the producer has, told to the worker that asked
ctl.end.<tenant>.<conversation>         live      tells all workers to forget a conversation
ctl.<worker>.resend                     live      asks a worker for lost chunks
bell.<region>.<class>                   live      a job of this class was stored, headers only
hb.<region>.<worker>                    live      heartbeats
drain.<region>.<worker>                 live      tells a worker to hand its jobs over and end
offer.<region>.<worker>                 live      asks a worker to take a follow-up
will.<region>.<worker>                  live      tells a worker what another holds, asks if it is there
usage.<region>.<tenant>.<job>           USAGE     metering records, in the account METER
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from sparkle.errors import InvalidMessage
from sparkle.schemas.message import JobId, Name
from sparkle.schemas.priority import PriorityClass

JOBS_STREAM = "JOBS"
RESULTS_STREAM = "RESULTS"
CONTROL_STREAM = "CONTROL"
ANSWERED_STREAM = "ANSWERED"
STREAMS = (JOBS_STREAM, RESULTS_STREAM, CONTROL_STREAM, ANSWERED_STREAM)
"""Those with content, in memory alone."""

USAGE_STREAM = "USAGE"

HOME_HEADER = "Sparkle-Home"
"""On a job: the worker that answered the conversation's last one, and may hold its state."""

KEY_HEADER = "Sparkle-Key"
"""On a sealed payload, either way: the id of the tenant's key."""

PUBLICATION_HEADER = "Sparkle-Publication"
"""On a job that its producer published before: how often."""

TRACE_HEADER = "traceparent"
"""On a job: the W3C trace context of its producer's caller."""

SUBJECT_HEADER = "Sparkle-Subject"
"""On a job that one worker hands to another: the subject that it was pulled from."""

ACK_HEADER = "Sparkle-Ack"
"""Beside it: where the message's fate is told. The server lets nobody send that as the reply."""

_NAME = TypeAdapter[str](Name)
_JOB_ID = TypeAdapter[str](JobId)


@dataclass(frozen=True, slots=True)
class JobAddress:
    """Where a job stands on the queue: the four tokens of its subject."""

    region: str
    priority: PriorityClass
    tenant: str
    job: str

    @property
    def subject(self) -> str:
        """The job's own subject."""
        return f"jobs.{self.region}.{self.priority}.{self.tenant}.{self.job}"

    @classmethod
    def parse(cls, subject: str) -> JobAddress:
        """The address in a job's subject. Raises InvalidMessage naming the bad token's place."""
        tokens = subject.split(".")
        if len(tokens) != 5 or tokens[0] != "jobs":
            raise InvalidMessage("subject: not of the form jobs.<region>.<class>.<tenant>.<job>")
        try:
            return cls(
                region=_NAME.validate_python(tokens[1]),
                priority=PriorityClass(tokens[2]),
                tenant=_NAME.validate_python(tokens[3]),
                job=_JOB_ID.validate_python(tokens[4]),
            )
        # pydantic's error is a ValueError as well; neither may carry the token itself onward
        except (ValidationError, ValueError):
            raise InvalidMessage("subject: region, class, tenant or job id is malformed") from None


def all_jobs() -> str:
    """The subjects of JOBS: every region, class, tenant and job."""
    return "jobs.*.*.*.*"


def jobs_of(region: str, priority: PriorityClass) -> str:
    """The filter of one class's consumer."""
    return f"jobs.{region}.{priority}.>"


def consumer(region: str, priority: PriorityClass) -> str:
    """Name of the durable consumer of one class in one region."""
    return f"{region}-{priority}"


def reply(tenant: str, job: str) -> str:
    """Where chunks of a job go."""
    return f"reply.{tenant}.{job}"


def result(tenant: str, job: str) -> str:
    """Where the end of a job is stored."""
    return f"result.{tenant}.{job}"


def cancel(tenant: str, job: str) -> str:
    """Where the tombstone of a cancelled job is stored."""
    return f"ctl.cancel.{tenant}.{job}"


def answered(tenant: str, job: str) -> str:
    """Where a worker stores how far a job's answer has come."""
    return f"answered.{tenant}.{job}"


def told(tenant: str, job: str, question: str) -> str:
    """Where a producer tells the worker that asks how far its answer has come; each question has its own."""
    return f"told.{tenant}.{job}.{question}"


def end_conversation(tenant: str, conversation: str) -> str:
    """Where workers are told that a conversation is over."""
    return f"ctl.end.{tenant}.{conversation}"


def resend(worker: str) -> str:
    """Where a worker is asked for lost chunks."""
    return f"ctl.{worker}.resend"


def drain(region: str, worker: str) -> str:
    """Where an operator tells a worker to end."""
    return f"drain.{region}.{worker}"


def bell(region: str, priority: str = "*") -> str:
    """Rings when a job of the class is stored; all classes without one."""
    return f"bell.{region}.{priority}"


def heartbeat(region: str = "*", worker: str = "*") -> str:
    """Where workers say that they are alive."""
    return f"hb.{region}.{worker}"


def offer(region: str, worker: str) -> str:
    """Where a worker is asked whether it takes a follow-up of a conversation that it may hold."""
    return f"offer.{region}.{worker}"


def will(region: str, worker: str) -> str:
    """Where a worker is told what another one holds, and asked whether it is there."""
    return f"will.{region}.{worker}"


def usage(region: str, tenant: str, job: str) -> str:
    """Where a finished job's metering record goes."""
    return f"usage.{region}.{tenant}.{job}"

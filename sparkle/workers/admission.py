"""The checks before a job starts, in their order; a refusal is a Failure to store. Knows no engine.

A job passes if its subject and its message are well-formed and agree, its deadline is ahead, its prompt
leaves room for an answer, its producer still wants it, and it has not been delivered too often in vain.
"""

from __future__ import annotations

from sparkle.errors import (
    ContractError,
    EncryptionRequired,
    FailureCode,
    NotAuthentic,
    SealError,
    UnknownKey,
    UnsupportedVersion,
)
from sparkle.queue.delivery import Delivery
from sparkle.queue.job_seals import JobSeals
from sparkle.schemas.answer import Failure
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job
from sparkle.schemas.room import no_room
from sparkle.schemas.subjects import JobAddress

_SEAL_CODES: dict[type[SealError], FailureCode] = {
    UnknownKey: FailureCode.UNKNOWN_KEY,
    NotAuthentic: FailureCode.NOT_AUTHENTIC,
    EncryptionRequired: FailureCode.ENCRYPTION_REQUIRED,
}

MAX_RETRY_DELAY_S = 30.0
"""The longest that a job waits for another worker which may do better."""
_MAX_DOUBLINGS = 10
"""Beyond it in any case; a job that goes on at each delivery may have any number of them."""


def open_payload(seals: JobSeals, delivery: Delivery, address: JobAddress) -> bytes | Failure:
    """The job's bytes as its producer packed them, or why they cannot be had."""
    try:
        return seals.open(delivery, address)
    except SealError as error:
        return refusal(address, delivery.attempt, _SEAL_CODES[type(error)], str(error))


def read_job(payload: bytes, address: JobAddress, attempt: int) -> Job | Failure:
    """The job in a message that came under `address`, or why it is none of ours."""
    try:
        job = decode(payload, Job)
    except UnsupportedVersion as error:
        return refusal(address, attempt, FailureCode.UNSUPPORTED, str(error))
    except ContractError as error:
        return refusal(address, attempt, FailureCode.INVALID_JOB, str(error))
    for name, said, stands in (
        ("id", job.id, address.job),
        ("tenant", job.tenant, address.tenant),
        ("region", job.region, address.region),
    ):
        if said != stands:
            return refusal(
                address, attempt, FailureCode.INVALID_JOB, f"{name}: not the one in the message's subject"
            )
    return job


def check_deliveries(address: JobAddress, delivery: int, wrote: int, max_deliveries: int) -> Failure | None:
    """Refuse a job at its last delivery: all since number `wrote` ended, or gave it back, without a token."""
    vain = delivery - wrote
    if vain < max_deliveries:
        return None
    return refusal(
        address,
        delivery,
        FailureCode.POISON_JOB,
        f"delivery {vain} of at most {max_deliveries} without a token of the answer; not tried again",
    )


def retry_delay_s(delivery: int) -> float:
    """How long a job waits behind a failure that is not its own: 1 s, each time twice as long."""
    return min(2.0 ** min(delivery - 1, _MAX_DOUBLINGS), MAX_RETRY_DELAY_S)


def check_deadline(job: Job, address: JobAddress, attempt: int, now_s: float) -> Failure | None:
    """Refuse a job whose deadline is not after `now_s`, Unix time in seconds."""
    if job.deadline_ms is None or now_s * 1000 < job.deadline_ms:
        return None
    late_ms = int(now_s * 1000 - job.deadline_ms)
    return refusal(
        address,
        attempt,
        FailureCode.DEADLINE_EXCEEDED,
        f"the deadline passed {late_ms} ms before the job started",
    )


def check_length(job: Job, address: JobAddress, attempt: int, context_tokens: int) -> Failure | None:
    """Refuse token ids that leave no room for an answer; of text the engine alone knows how long it is.

    `context_tokens`: the longest prompt and answer together that the engine has room for.
    """
    too_long = no_room(len(job.prompt_tokens or ()), context_tokens)
    return None if too_long is None else refusal(address, attempt, FailureCode.TOO_LONG, too_long)


def refusal(address: JobAddress, attempt: int, code: FailureCode, message: str) -> Failure:
    """A Failure that trying again will not mend; `message` holds no content and is cut to what fits."""
    return Failure(job=address.job, attempt=attempt, code=code, message=message[:2000], retryable=False)

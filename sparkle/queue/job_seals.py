"""The keys of the jobs that a worker holds: its answers go back under the key of the job. Knows no job."""

from __future__ import annotations

from collections.abc import Mapping

from sparkle.errors import EncryptionRequired, NotAuthentic, UnknownKey
from sparkle.queue.delivery import Delivery
from sparkle.queue.envelope import NO_HEADERS, Envelope, Seal
from sparkle.queue.key_ring import KeyRing
from sparkle.schemas.subjects import KEY_HEADER, JobAddress


class JobSeals:
    """By tenant and job, from when its payload is opened until it is let go."""

    def __init__(self, ring: KeyRing | None = None, *, required: bool = False) -> None:
        """Without a ring no payload can be opened; `required` refuses those that are not sealed."""
        self._ring = ring
        self._required = required
        self._held: dict[tuple[str, str], Seal] = {}

    def open(self, delivery: Delivery, address: JobAddress) -> bytes:
        """The job's bytes; from now on its answers are sealed, if it was.

        Raises UnknownKey, NotAuthentic, and EncryptionRequired for a job that is not sealed and must be.
        """
        key_id = delivery.headers.get(KEY_HEADER)
        if key_id is None:
            if self._required:
                raise EncryptionRequired("payload: not encrypted, and this worker takes nothing else")
            return delivery.payload
        if self._ring is None:
            raise UnknownKey("payload: encrypted, and this worker has no keys; give it a keys_file")
        key = self._ring.named(address.tenant, key_id)
        payload = key.open(delivery.subject, delivery.payload)
        self._held[address.tenant, address.job] = key
        return payload

    def seal(self, tenant: str, job: str, place: str, payload: bytes) -> tuple[bytes, Mapping[str, str]]:
        """What goes over the queue under the subject `place`, and its headers: sealed if the job was."""
        key = self._held.get((tenant, job))
        return (payload, NO_HEADERS) if key is None else (key.seal(place, payload), key.headers)

    def open_answer(self, tenant: str, job: str, place: str, message: Envelope) -> bytes:
        """What was sealed for the place `place` under the job's key, or the payload of a job that was not.

        Raises UnknownKey, NotAuthentic.
        """
        key = self._held.get((tenant, job))
        if key is None:
            return message.payload
        if message.headers.get(KEY_HEADER) != key.id:
            raise UnknownKey("payload: not sealed with the job's key")
        return key.open(place, message.payload)

    def is_sealed(self, tenant: str, job: str, place: str, payload: bytes, stored: bytes) -> bool:
        """Whether `stored` is what `seal` made of this payload: another one each time."""
        key = self._held.get((tenant, job))
        if key is None:
            return payload == stored
        try:
            return key.open(place, stored) == payload
        except NotAuthentic:
            return False

    def let_go(self, tenant: str, job: str) -> None:
        """The job has left this worker."""
        self._held.pop((tenant, job), None)

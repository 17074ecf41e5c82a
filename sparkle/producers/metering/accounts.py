"""One tenant's account in the bucket, and its records in their stream. Knows no job and no allowance."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from pydantic import ValidationError

from sparkle.errors import ContractError, InvalidMessage
from sparkle.producers.metering.account import Account, Placed
from sparkle.producers.metering.contention import MOST_CONFLICTS, contended, pause
from sparkle.queue.connection import Connection
from sparkle.queue.key_values import KeyValues
from sparkle.queue.stored_messages import StoredMessage, batches_after
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode, describe
from sparkle.schemas.control import UsageRecord

log = logging.getLogger(__name__)


class AccountFile:
    """The account of one tenant. Each method raises QueueError, and InvalidMessage for a newer version's."""

    def __init__(self, connection: Connection, values: KeyValues, tenant: str) -> None:
        self._connection = connection
        self._values = values
        self._tenant = tenant

    async def load(self) -> tuple[Account, int]:
        """The account and its revision; an empty one at revision 0 where there is none."""
        entry = await self._values.get(self._key)
        if entry is None:
            return Account(), 0
        try:
            return Account.model_validate_json(entry.value), entry.revision
        except ValidationError as error:
            raise InvalidMessage(
                f"{self._key}: {describe(error)}; a newer version may have written it: use that one"
            ) from None

    async def store(self, account: Account, *, revision: int) -> int | None:
        """The new revision; None when another write was faster."""
        return await self._values.put(self._key, account.model_dump_json().encode(), revision=revision)

    async def records_after(self, seq: int) -> AsyncIterator[list[Placed]]:
        """What stands behind this place of the stream, in order, some hundred at a time."""
        subject = subjects.usage("*", self._tenant, "*")
        async for messages in batches_after(self._connection, subjects.USAGE_STREAM, subject, seq):
            yield [Placed(message.seq, self._read(message)) for message in messages]

    async def count(self) -> Account:
        """The account with all records in, written if it was not so."""
        for attempt in range(MOST_CONFLICTS):
            account, revision = await self.load()
            counted = account
            async for placed in self.records_after(account.through_seq):
                counted = counted.counting(placed)
            is_new = counted.through_seq > account.through_seq
            if not is_new or await self.store(counted, revision=revision) is not None:
                return counted
            await pause(attempt)
        raise contended(f"the account of {self._tenant}")

    def _read(self, message: StoredMessage) -> UsageRecord | None:
        try:
            record = decode(message.payload, UsageRecord)
        except ContractError as error:
            log.error("usage_unreadable", extra={"seq": message.seq, "error": type(error).__name__})
            return None
        # whoever may send for one tenant may not for another: only the subject is checked by the server
        if message.subject != subjects.usage(record.region, self._tenant, record.job):
            log.error("usage_misplaced", extra={"seq": message.seq, "tenant": self._tenant})
            return None
        return record

    @property
    def _key(self) -> str:
        return f"account.{self._tenant}"

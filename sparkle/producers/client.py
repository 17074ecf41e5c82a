"""The producer's end of the queue: `connect`, submit jobs, get handles. Knows no NATS and no engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkle.errors import FailureCode, InvalidMessage, JobFailed, NotConnected
from sparkle.producers.dispatcher import Dispatcher
from sparkle.producers.handle import Handle
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.key_ring import EncryptionSettings, KeyRing
from sparkle.schemas.job import MAX_CONTEXT_TOKENS, Job
from sparkle.schemas.priority import classify, estimate_prompt_tokens
from sparkle.schemas.room import no_room

CountTokens = Callable[[Job], int]
"""The number of tokens of a job's prompt, from whoever has the model's tokenizer at hand."""


class Client:
    """Many jobs at once over one connection. Made by `connect` or `open`."""

    def __init__(
        self,
        connection: Connection,
        settings: ClientSettings,
        count_tokens: CountTokens | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        """Takes the connection over: it ends with the client. With keys its tenant's jobs are encrypted."""
        self.settings = settings
        self._connection = connection
        self._count_tokens = count_tokens
        self._dispatcher = Dispatcher(connection, settings, keys)
        self._dispatcher.start()
        self._closed = False

    @classmethod
    async def open(cls, settings: ClientSettings, count_tokens: CountTokens | None = None) -> Client:
        """Connect. Raises NotConnected when no server answers, ConfigError for keys that cannot be used."""
        keys = settings.encryption.ring()
        connection = await Connection.open(settings.connection("sparkle-producer"))
        return cls(connection, settings, count_tokens, keys)

    async def submit(self, job: Job) -> Handle:
        """Put the job on the queue; returns once the queue holds it, however often that has to be tried.

        Tenant and region are filled in. Submitting an id that is open in this client gives the same handle.
        Raises QueueFull (TenantOverShare where it is this tenant that has too many jobs waiting in this
        client), MessageTooLarge and TopologyMissing at once, InvalidMessage for another tenant or region than
        the client's, UnknownKey where there are keys and none is the tenant's, NotConnected when the
        connection has ended for good; JobFailed with code `too_long` for a prompt of a known number of
        tokens, given or counted, that no model of the contract has room for. To limit the wait, set the job's
        deadline or cancel this call: then the job is cancelled as well.
        """
        if self._closed:
            raise NotConnected("the client is closed; connect anew")
        job = self._addressed(job)
        tokens = (self._count_tokens or estimate_prompt_tokens)(job)
        if self._count_tokens is not None or job.prompt_tokens is not None:
            _require_room(tokens)
        priority = classify(tokens, job.max_tokens, self.settings.rates)
        return await self._dispatcher.dispatch(job, self.settings.tenant, priority)

    async def end_conversation(self, conversation: str) -> None:
        """Have what workers keep of a conversation forgotten now, not some minutes after its last job.

        It can be gone on with; its next job is then read from the start. Jobs that run are not ended. A
        worker that is cut off from the queue just then keeps it until its time is over.

        Raises InvalidMessage for a malformed id, NotConnected when the connection has ended for good.
        """
        if self._closed:
            raise NotConnected("the client is closed; connect anew")
        await self._dispatcher.end_conversation(self.settings.tenant, conversation)

    async def close(self) -> None:
        """End: open handles raise NotConnected, their jobs go on and can be submitted again by their ids."""
        if not self._closed:
            self._closed = True
            await self._dispatcher.close()
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _addressed(self, job: Job) -> Job:
        own = {"tenant": self.settings.tenant, "region": self.settings.region}
        for name, value in own.items():
            if getattr(job, name) not in (None, value):
                raise InvalidMessage(f"{name}: the job names another one than its client's, {value}")
        # both values are checked already: the settings' own check is the contract's
        return job.model_copy(update=own)


def _require_room(prompt_tokens: int) -> None:
    too_long = no_room(prompt_tokens, MAX_CONTEXT_TOKENS)
    if too_long is not None:
        raise JobFailed(FailureCode.TOO_LONG, too_long, retryable=False)


class Connecting:
    """What `connect` returns: await it for a client, or use it with `async with` to have it closed."""

    def __init__(self, settings: ClientSettings, count_tokens: CountTokens | None) -> None:
        self._settings = settings
        self._count_tokens = count_tokens
        self._client: Client | None = None

    def __await__(self) -> Generator[None, None, Client]:
        return Client.open(self._settings, self._count_tokens).__await__()

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def connect(
    url: str,
    *,
    region: str,
    tenant: str = "default",
    count_tokens: CountTokens | None = None,
    keys_file: Path | None = None,
) -> Connecting:
    """Connect to the queue at `url`: `client = await connect(…)` or `async with connect(…) as client`.

    With a file of keys, jobs and answers are encrypted end to end (docs/decisions/0008-encryption.md). Raises
    ConfigError for a malformed region or tenant or keys that cannot be used, NotConnected when no server
    answers.
    """
    encryption = EncryptionSettings(keys_file=keys_file)
    settings = ClientSettings(nats=url, region=region, tenant=tenant, encryption=encryption)
    return Connecting(settings, count_tokens)

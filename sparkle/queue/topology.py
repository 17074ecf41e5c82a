"""Declares streams and consumers, as often as you like with the same end. Workers never call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from sparkle.errors import ConfigError, TopologyMissing
from sparkle.queue.api import NO_CONSUMER, NO_STREAM, ApiAnswer, as_count, as_table, ask
from sparkle.queue.connection import Connection
from sparkle.queue.storage import require_memory
from sparkle.queue.streams import TopologySettings, consumer_config, stream_configs
from sparkle.schemas import subjects
from sparkle.schemas.priority import PriorityClass

__all__ = [
    "Change",
    "ConsumerState",
    "Outcome",
    "StreamState",
    "Topology",
    "TopologySettings",
    "apply",
    "consumer_state",
    "show",
]


class Outcome(StrEnum):
    """What `apply` did with a stream or consumer."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of what `apply` did."""

    kind: str
    """`stream` or `consumer`."""

    name: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it is."""

    name: str
    subjects: tuple[str, ...]
    replicas: int
    messages: int
    size_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """One class's consumer as it is."""

    name: str
    waiting: int
    running: int
    pulls: int
    """Pull requests waiting for a job: idle capacity."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What is declared on a server."""

    streams: tuple[StreamState, ...]
    consumers: tuple[ConsumerState, ...]


async def apply(connection: Connection, settings: TopologySettings) -> list[Change]:
    """Make streams and consumers what `settings` say; regions are only ever added.

    Raises ConfigError where JetStream cannot change what is there, naming it, or where the account may store
    files; NotConnected.
    """
    await require_memory(connection)
    info = await ask(connection, f"STREAM.INFO.{subjects.JOBS_STREAM}")
    present = _regions_in(info)
    regions = tuple(dict.fromkeys((*present, *settings.region_names)))
    changes = [await apply_stream(connection, config) for config in stream_configs(settings, regions=regions)]
    consumers = [
        consumer_config(settings, region, priority) for region in regions for priority in PriorityClass
    ]
    return changes + [await _apply_consumer(connection, config) for config in consumers]


async def show(connection: Connection) -> Topology:
    """What is declared. Raises TopologyMissing when a stream is not, NotConnected."""
    streams: list[StreamState] = []
    for name in subjects.STREAMS:
        info = await ask(connection, f"STREAM.INFO.{name}")
        if info.code:
            raise TopologyMissing(f"stream {name} is not declared; run `sparkle topology apply`")
        streams.append(_stream_state(info))
    consumers = [
        await consumer_state(connection, region, priority)
        for region in _regions_of(streams[0].subjects)
        for priority in PriorityClass
    ]
    return Topology(tuple(streams), tuple(consumers))


async def consumer_state(connection: Connection, region: str, priority: PriorityClass) -> ConsumerState:
    """One class's counts. Raises TopologyMissing when it is not declared, NotConnected."""
    name = subjects.consumer(region, priority)
    info = await ask(connection, f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{name}")
    if info.code:
        raise TopologyMissing(
            f"consumer {name} is not declared; run `sparkle topology apply --region {region}`"
        )
    return ConsumerState(
        name=name,
        waiting=as_count(info.fields.get("num_pending")),
        running=as_count(info.fields.get("num_ack_pending")),
        pulls=as_count(info.fields.get("num_waiting")),
    )


async def apply_stream(connection: Connection, config: dict[str, object]) -> Change:
    name = str(config["name"])
    info = await ask(connection, f"STREAM.INFO.{name}")
    if info.code == NO_STREAM:
        _accepted(await ask(connection, f"STREAM.CREATE.{name}", config), "stream", name)
        return Change("stream", name, Outcome.CREATED)
    _accepted(info, "stream", name)
    present = info.table("config")
    if _agrees(present, config):
        return Change("stream", name, Outcome.UNCHANGED)
    _accepted(await ask(connection, f"STREAM.UPDATE.{name}", {**present, **config}), "stream", name)
    return Change("stream", name, Outcome.UPDATED)


async def _apply_consumer(connection: Connection, config: dict[str, object]) -> Change:
    name = str(config["name"])
    info = await ask(connection, f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{name}")
    if info.code not in (0, NO_CONSUMER):
        _accepted(info, "consumer", name)
    if not info.code and _agrees(info.table("config"), config):
        return Change("consumer", name, Outcome.UNCHANGED)
    wanted = {**info.table("config"), **config}
    body: dict[str, object] = {"stream_name": subjects.JOBS_STREAM, "config": wanted}
    _accepted(await ask(connection, f"CONSUMER.CREATE.{subjects.JOBS_STREAM}.{name}", body), "consumer", name)
    return Change("consumer", name, Outcome.CREATED if info.code else Outcome.UPDATED)


def _accepted(answer: ApiAnswer, kind: str, name: str) -> None:
    if answer.code:
        raise ConfigError(
            f"{kind} {name}: JetStream refused it (code {answer.code}: {answer.reason}); change the setting, "
            f"or delete the {kind} once it is empty and apply again"
        )


def _agrees(present: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether all that is wanted is so; the server adds fields of its own."""
    for name, value in wanted.items():
        have = present.get(name)
        if isinstance(value, dict):
            if not _agrees(as_table(have), cast("dict[str, object]", value)):
                return False
        elif have != value:
            return False
    return True


def _stream_state(info: ApiAnswer) -> StreamState:
    config, state = info.table("config"), info.table("state")
    return StreamState(
        name=str(config.get("name")),
        subjects=_subjects_in(info),
        replicas=as_count(config.get("num_replicas")),
        messages=as_count(state.get("messages")),
        size_bytes=as_count(state.get("bytes")),
        max_bytes=as_count(config.get("max_bytes")),
    )


def _subjects_in(info: ApiAnswer) -> tuple[str, ...]:
    listed = info.table("config").get("subjects")
    return tuple(map(str, cast("list[object]", listed))) if isinstance(listed, list) else ()


def _regions_in(info: ApiAnswer) -> tuple[str, ...]:
    return _regions_of(_subjects_in(info))


def _regions_of(jobs_subjects: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(subject.split(".")[1] for subject in jobs_subjects))

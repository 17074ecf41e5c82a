"""Declares streams and consumers, as often as you like with the same end. Workers never call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from pydantic import TypeAdapter, ValidationError

from sparkle.errors import ConfigError, TopologyMissing
from sparkle.queue.api import NO_CONSUMER, NO_STREAM, ApiAnswer, as_count, as_table, ask
from sparkle.queue.connection import Connection
from sparkle.schemas import subjects
from sparkle.schemas.codec import MAX_MESSAGE_BYTES
from sparkle.schemas.message import Name
from sparkle.schemas.priority import PriorityClass

_MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000
_REGION = TypeAdapter[str](Name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    """What the streams hold and how long."""

    regions: str = "local"
    """Regions served here, comma-separated."""

    replicas: int = 1
    """Copies of each stream: 1, or 3 on a cluster of three."""

    jobs_max_bytes: int = 512 * _MIB
    """Memory reserved for waiting and running jobs; a full queue refuses new ones."""

    jobs_max_count: int = 1_000_000
    """Jobs waiting and running at most."""

    results_max_bytes: int = 256 * _MIB
    """Memory reserved for results."""

    results_max_age_s: float = 600.0
    """How long a result can be fetched."""

    control_max_bytes: int = 16 * _MIB
    """Memory reserved for tombstones of cancelled jobs."""

    control_max_age_s: float = 900.0
    """How long a tombstone is kept."""

    ack_wait_s: float = 30.0
    """A job whose worker says nothing for this long goes to another one."""

    max_running: int = 10_000
    """Jobs of one class in work at once: at least 1.5 times all slots."""

    max_pulls: int = 2_048
    """Pull requests waiting at one class: at least 4 times the workers."""

    duplicate_window_s: float = 120.0
    """How long the same publication of a job is recognised."""

    def __post_init__(self) -> None:
        if self.replicas not in (1, 3):
            raise ConfigError(f"replicas is {self.replicas} but must be 1 or 3")
        numbers = (
            "jobs_max_bytes jobs_max_count results_max_bytes results_max_age_s control_max_bytes "
            "control_max_age_s ack_wait_s max_running max_pulls duplicate_window_s"
        )
        for name in numbers.split():
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)} but must be above 0")
        if not self.region_names:
            raise ConfigError("regions is empty but must name at least one, for example eu")
        for region in self.region_names:
            try:
                _REGION.validate_python(region)
            except ValidationError:
                raise ConfigError(
                    f"regions has {region!r} but a name is 1 to 63 lower-case letters, digits and dashes"
                ) from None

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions, each once, in order."""
        return tuple(dict.fromkeys(part.strip() for part in self.regions.split(",") if part.strip()))


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

    Raises ConfigError where JetStream cannot change what is there, naming it; NotConnected.
    """
    info = await ask(connection, f"STREAM.INFO.{subjects.JOBS_STREAM}")
    present = _regions_in(info)
    regions = tuple(dict.fromkeys((*present, *settings.region_names)))
    changes = [
        await _apply_stream(connection, config) for config in stream_configs(settings, regions=regions)
    ]
    consumers = [
        consumer_config(settings, region, priority) for region in regions for priority in PriorityClass
    ]
    return changes + [await _apply_consumer(connection, config) for config in consumers]


async def show(connection: Connection) -> Topology:
    """What is declared. Raises TopologyMissing when a stream is not, NotConnected."""
    streams: list[StreamState] = []
    for name in (subjects.JOBS_STREAM, subjects.RESULTS_STREAM, subjects.CONTROL_STREAM):
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
        raise TopologyMissing(f"consumer {name} is not declared; run `sparkle topology apply`")
    return ConsumerState(
        name=name,
        waiting=as_count(info.fields.get("num_pending")),
        running=as_count(info.fields.get("num_ack_pending")),
        pulls=as_count(info.fields.get("num_waiting")),
    )


def stream_configs(settings: TopologySettings, *, regions: tuple[str, ...]) -> list[dict[str, object]]:
    """The three streams, in the server's own JSON."""
    shared: dict[str, object] = {"storage": "memory", "num_replicas": settings.replicas}
    jobs: dict[str, object] = {
        "name": subjects.JOBS_STREAM,
        # one subject a region and class: a job of any other finds no stream, instead of waiting for ever
        "subjects": [f"jobs.{region}.{priority}.*.*" for region in regions for priority in PriorityClass],
        "retention": "workqueue",
        "discard": "new",
        # a job id can be queued or in work only once: the second publish is refused
        "max_msgs_per_subject": 1,
        "discard_new_per_subject": True,
        "max_msgs": settings.jobs_max_count,
        "max_bytes": settings.jobs_max_bytes,
        "max_msg_size": MAX_MESSAGE_BYTES,
        "duplicate_window": int(settings.duplicate_window_s * _NS_PER_S),
        "republish": {
            "src": subjects.all_jobs(),
            "dest": subjects.bell("{{wildcard(1)}}", "{{wildcard(2)}}"),
            "headers_only": True,
        },
    }
    results: dict[str, object] = {
        "name": subjects.RESULTS_STREAM,
        "subjects": [subjects.result("*", "*")],
        "retention": "limits",
        # full, it holds jobs back: an older result is never dropped unread
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_bytes": settings.results_max_bytes,
        "max_msg_size": MAX_MESSAGE_BYTES,
        "max_age": int(settings.results_max_age_s * _NS_PER_S),
        "duplicate_window": int(min(settings.duplicate_window_s, settings.results_max_age_s) * _NS_PER_S),
        "allow_direct": True,
        # who waits for the chunks gets the stored end on the same subject, after them
        "republish": {
            "src": subjects.result("*", "*"),
            "dest": subjects.reply("{{wildcard(1)}}", "{{wildcard(2)}}"),
        },
    }
    control: dict[str, object] = {
        "name": subjects.CONTROL_STREAM,
        "subjects": [subjects.cancel("*", "*")],
        "retention": "limits",
        # a lost old tombstone costs a run of a job nobody wants; a refused new one costs the cancel
        "discard": "old",
        "max_msgs_per_subject": 1,
        "max_bytes": settings.control_max_bytes,
        "max_age": int(settings.control_max_age_s * _NS_PER_S),
        "duplicate_window": int(min(settings.duplicate_window_s, settings.control_max_age_s) * _NS_PER_S),
        "allow_direct": True,
    }
    return [{**config, **shared} for config in (jobs, results, control)]


def consumer_config(settings: TopologySettings, region: str, priority: PriorityClass) -> dict[str, object]:
    """One class's durable pull consumer, in the server's own JSON."""
    return {
        "name": subjects.consumer(region, priority),
        "durable_name": subjects.consumer(region, priority),
        "filter_subject": subjects.jobs_of(region, priority),
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": int(settings.ack_wait_s * _NS_PER_S),
        # a limit here would leave the job in the stream for ever; the worker gives up instead
        "max_deliver": -1,
        "max_ack_pending": settings.max_running,
        "max_waiting": settings.max_pulls,
    }


async def _apply_stream(connection: Connection, config: dict[str, object]) -> Change:
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

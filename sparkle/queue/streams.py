"""What streams and consumers are to be, in the server's own JSON. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.config import require_positive
from sparkle.errors import ConfigError
from sparkle.schemas import subjects
from sparkle.schemas.codec import MAX_MESSAGE_BYTES
from sparkle.schemas.names import require_name
from sparkle.schemas.priority import PriorityClass

_MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000


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

    answered_max_bytes: int = 64 * _MIB
    """Memory reserved for how far answers have come whose producers are away."""

    answered_max_age_s: float = 600.0
    """How long that is kept after it was last stored."""

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
            "control_max_age_s answered_max_bytes answered_max_age_s ack_wait_s max_running max_pulls "
            "duplicate_window_s"
        )
        require_positive(self, *numbers.split())
        if not self.region_names:
            raise ConfigError("regions is empty but must name at least one, for example eu")
        for region in self.region_names:
            require_name("a name in regions", region)

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions, each once, in order."""
        return tuple(dict.fromkeys(part.strip() for part in self.regions.split(",") if part.strip()))


def stream_configs(settings: TopologySettings, *, regions: tuple[str, ...]) -> list[dict[str, object]]:
    """The four streams, in the server's own JSON."""
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
        **_one_a_job(settings, settings.results_max_bytes, settings.results_max_age_s),
        "name": subjects.RESULTS_STREAM,
        "subjects": [subjects.result("*", "*")],
        # full, it holds jobs back: an older result is never dropped unread
        "discard": "new",
        "max_msg_size": MAX_MESSAGE_BYTES,
        # who waits for the chunks gets the stored end on the same subject, after them
        "republish": {
            "src": subjects.result("*", "*"),
            "dest": subjects.reply("{{wildcard(1)}}", "{{wildcard(2)}}"),
        },
    }
    control: dict[str, object] = {
        **_one_a_job(settings, settings.control_max_bytes, settings.control_max_age_s),
        "name": subjects.CONTROL_STREAM,
        "subjects": [subjects.cancel("*", "*")],
        # a lost old tombstone costs a run of a job nobody wants; a refused new one costs the cancel
        "discard": "old",
    }
    answered: dict[str, object] = {
        **_one_a_job(settings, settings.answered_max_bytes, settings.answered_max_age_s),
        "name": subjects.ANSWERED_STREAM,
        "subjects": [subjects.answered("*", "*")],
        # a lost one costs the time to write the same tokens again
        "discard": "old",
        "max_msg_size": MAX_MESSAGE_BYTES,
    }
    return [{**config, **shared} for config in (jobs, results, control, answered)]


def _one_a_job(settings: TopologySettings, max_bytes: int, max_age_s: float) -> dict[str, object]:
    """What streams have in common that keep one message of a job for a while, read by its subject."""
    return {
        "retention": "limits",
        "max_msgs_per_subject": 1,
        "max_bytes": max_bytes,
        "max_age": int(max_age_s * _NS_PER_S),
        # the server takes none that is longer than the age
        "duplicate_window": int(min(settings.duplicate_window_s, max_age_s) * _NS_PER_S),
        "allow_direct": True,
    }


def reserved_bytes(settings: TopologySettings) -> int:
    """Memory that one copy of all streams reserves as they are declared."""
    sizes = [config["max_bytes"] for config in stream_configs(settings, regions=settings.region_names)]
    return sum(size for size in sizes if isinstance(size, int))


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

"""The worker's counters and histograms for Prometheus: units in the names, ids never as labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from sparkle.engine.frames import Cached
from sparkle.errors import ConfigError
from sparkle.schemas.control import UsageRecord

_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1)


class WorkerMetrics:
    """All metrics of one worker, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.slots = self._gauge("sparkle_slots", "Jobs the engine can run at once")
        self.busy = self._gauge("sparkle_slots_busy", "Jobs held now")
        self.deliveries = self._counter("sparkle_deliveries", "Messages taken to be run here", ["priority"])
        self.follow_ups = self._counter(
            "sparkle_follow_ups",
            "Follow-ups pulled: by their home, handed over to it, or run here as it was busy or gone",
            ["way"],
        )
        self.jobs = self._counter("sparkle_jobs", "Jobs ended here, by how they ended", ["outcome"])
        self.resumed = self._counter("sparkle_jobs_resumed", "Jobs that another attempt had begun")
        self.rescued = self._counter("sparkle_jobs_rescued", "Jobs of workers that died, handed on from here")
        self.engine_restarts = self._counter(
            "sparkle_engine_restarts", "How often the engine process was started again"
        )
        self.handed_back = self._counter("sparkle_jobs_handed_back", "Jobs given back to the queue")
        self.tokens = self._counter("sparkle_tokens", "Tokens of ended jobs, by what they were", ["kind"])
        self.cache_hits = self._counter(
            "sparkle_cache_hits", "Answers whose prompt was not read from its beginning"
        )
        self.cache_checkpoints = self._gauge(
            "sparkle_cache_checkpoints", "States kept of prompts and answers"
        )
        self.cache_evictions = self._gauge(
            "sparkle_cache_evictions", "States that left since the engine's start because memory was needed"
        )
        self.preemptions = self._gauge(
            "sparkle_preemptions", "How often a job gave way to a shorter one since the engine's start"
        )
        self.grammar_violations = self._counter(
            "sparkle_grammar_violations",
            "Answers that were kept to a shape and do not have it: faults, none of which was given out",
        )
        self.draft_passes = self._counter(
            "sparkle_draft_passes", "Passes that checked a draft, by who made it", ["proposer"]
        )
        self.draft_tokens = self._counter("sparkle_draft_tokens", "Tokens of these drafts", ["proposer"])
        self.draft_tokens_accepted = self._counter(
            "sparkle_draft_tokens_accepted",
            "Of these, the ones in an answer; over the passes, and one more, it is what a pass keeps",
            ["proposer"],
        )
        self.queue_s = self._histogram(
            "sparkle_queue_seconds", "From storing in the queue to the lease", ["priority"], buckets=_WAIT_S
        )
        self.first_token_s = self._histogram(
            "sparkle_first_token_seconds",
            "From the lease to the first token (TTFT without the queue)",
            buckets=_WAIT_S,
        )
        self.token_s = self._histogram(
            "sparkle_time_per_output_token_seconds",
            "Mean time between an answer's tokens (TPOT)",
            buckets=_TOKEN_S,
        )
        self.job_s = self._histogram("sparkle_job_seconds", "From the lease to the end", buckets=_WAIT_S)

    def _counter(self, name: str, says: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, says, labels, registry=self.registry)

    def _gauge(self, name: str, says: str) -> Gauge:
        return Gauge(name, says, registry=self.registry)

    def _histogram(
        self, name: str, says: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(name, says, labels, buckets=buckets, registry=self.registry)

    def cached(self, told: Cached) -> None:
        """What the engine says that it keeps, and what left or gave way so far."""
        self.cache_checkpoints.set(told.checkpoints)
        self.cache_evictions.set(told.evicted)
        self.preemptions.set(told.preempted)

    def answer_finished(self, drafts: Mapping[str, Sequence[int]], *, cached_tokens: int) -> None:
        """Count whether it was a hit, and its drafts: by proposer its passes, drafted and accepted tokens."""
        self.cache_hits.inc(cached_tokens > 0)
        for proposer, (passes, drafted, accepted) in drafts.items():
            self.draft_passes.labels(proposer).inc(passes)
            self.draft_tokens.labels(proposer).inc(drafted)
            self.draft_tokens_accepted.labels(proposer).inc(accepted)

    def job_ended(self, record: UsageRecord, first_token_s: float | None) -> None:
        """Count one ended job; `first_token_s` is None where there was no token."""
        self.jobs.labels(record.outcome).inc()
        for kind in ("prompt", "cached", "completion", "drafted", "accepted"):
            self.tokens.labels(kind).inc(getattr(record, f"{kind}_tokens"))
        self.queue_s.labels(record.priority).observe(record.queue_s)
        self.job_s.observe(record.total_s)
        if first_token_s is None:
            return
        self.first_token_s.observe(first_token_s)
        if record.completion_tokens > 1:
            self.token_s.observe((record.total_s - first_token_s) / (record.completion_tokens - 1))

    def serve(self, port: int) -> MetricsServer:
        """Answer Prometheus on 127.0.0.1. Raises ConfigError if the port is taken."""
        return MetricsServer(self.registry, port)


class MetricsServer:
    """The HTTP end of the metrics: a thread of its own, on this machine alone."""

    def __init__(self, registry: CollectorRegistry, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise ConfigError(
                f"metrics_port {port} cannot be opened ({error.strerror}); choose another"
            ) from None
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """Close the port and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

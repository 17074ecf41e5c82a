"""The gateway's counters and histograms for Prometheus: units in the names, ids never as labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sparkle_gateway_requests",
            "Requests answered, by endpoint and status",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self.open = Gauge(
            "sparkle_gateway_answers_open", "Answers under way, or being cancelled", registry=self.registry
        )
        self.disconnects = Counter(
            "sparkle_gateway_disconnects",
            "Clients that went before their answer was complete",
            registry=self.registry,
        )
        self.first_event_s = Histogram(
            "sparkle_gateway_first_event_seconds",
            "From a streaming request's body to the first piece of its answer",
            buckets=_WAIT_S,
            registry=self.registry,
        )
        self.request_s = Histogram(
            "sparkle_gateway_request_seconds",
            "From a generating request's body to the end of its answer",
            buckets=_WAIT_S,
            registry=self.registry,
        )
        self.file_bytes = Gauge(
            "sparkle_gateway_file_bytes", "Bytes of all files that are kept", registry=self.registry
        )
        self.batches = Gauge(
            "sparkle_gateway_batches_running", "Batches that are worked on", registry=self.registry
        )

    def text(self) -> bytes:
        """All of them, in Prometheus' text form."""
        return generate_latest(self.registry)

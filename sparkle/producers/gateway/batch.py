"""A batch: its state and its figures, as OpenAI shows them. Knows no queue."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

WINDOW_S = 24 * 3600
"""OpenAI's one completion window."""


class BatchState(StrEnum):
    """Where a batch is in its life."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED})


@dataclass(slots=True, eq=False)
class Batch:
    """One tenant's batch."""

    id: str
    tenant: str
    url: str
    input_file_id: str
    input_bytes: int
    metadata: dict[str, JsonValue] | None = field(default=None, repr=False)
    state: BatchState = BatchState.VALIDATING
    times_s: dict[BatchState, int] = field(default_factory=dict[BatchState, int])
    """When it came to each state."""

    created_s: int = field(default_factory=lambda: int(time.time()))
    errors: list[dict[str, object]] = field(default_factory=list[dict[str, object]], repr=False)
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def expires_s(self) -> int:
        """When its window closes."""
        return self.created_s + WINDOW_S

    def move_to(self, state: BatchState) -> None:
        """It has come to another state."""
        self.state = state
        self.times_s[state] = int(time.time())

    def fields(self) -> dict[str, object]:
        """As OpenAI shows it."""
        times = {f"{state}_at": self.times_s.get(state) for state in BatchState if state != "validating"}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.url,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": str(self.state),
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            **times,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }

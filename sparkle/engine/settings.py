"""Settings of the engine process, their bounds and defaults for a small CPU. Knows no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sparkle.errors import ConfigError

MAX_DEFAULT_THREADS = 4
UNUSABLE_CODE = 2
"""The process's exit code where the model or a setting cannot be used: starting it again will not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How much runs at once and how long it may be. The defaults suit two cores and sparkle-tiny."""

    slots: int = 8
    """Requests that run at once."""

    pass_tokens: int = 256
    """Rows of one pass at most: one for each answer being written, the rest read prompts.

    More makes running answers wait longer for a prompt that is read beside them.
    """

    page_tokens: int = 16
    """Tokens a KV page."""

    kv_tokens: int = 32_768
    """Tokens whose keys and values fit in memory, over all requests."""

    max_context_tokens: int | None = None
    """Longest prompt and answer together; None is the model's own limit. Never more than kv_tokens."""

    threads: int | None = None
    """Threads that compute; None is one a core but for one that is left to the worker, at most four."""

    prompt_threads: int = 2
    """Threads that turn jobs into prompts beside the step loop."""

    def __post_init__(self) -> None:
        for name in ("slots", "page_tokens", "prompt_threads"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value} but must be at least 1")
        for name in ("max_context_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value} but must be at least 1; leave it out for the default")
        if self.pass_tokens <= self.slots:
            raise ConfigError(
                f"pass_tokens is {self.pass_tokens} but must be above slots, {self.slots}: "
                "each running answer takes one, and prompts need the rest"
            )
        if self.kv_tokens < self.page_tokens:
            raise ConfigError(
                f"kv_tokens is {self.kv_tokens} but must be at least page_tokens, {self.page_tokens}"
            )

    @property
    def num_pages(self) -> int:
        """KV pages in all."""
        return self.kv_tokens // self.page_tokens

    def context_tokens(self, model_tokens: int) -> int:
        """Longest prompt and answer together with a model that was trained up to `model_tokens`."""
        wanted = self.max_context_tokens or model_tokens
        return min(wanted, model_tokens, self.num_pages * self.page_tokens)

    def compute_threads(self) -> int:
        """Threads that compute: as set, or by the cores that this process may use."""
        # a pass waits for its slowest thread: one on a busy core makes it many times slower than one fewer
        return self.threads or max(1, min(_usable_cores() - 1, MAX_DEFAULT_THREADS))


def _usable_cores() -> int:
    """Cores that this process may use; macOS knows only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_model() -> Path:
    """The model directory that comes with this package: sparkle-tiny."""
    return Path(str(resources.files("sparkle") / "checkpoints" / "sparkle-tiny"))

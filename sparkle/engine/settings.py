"""Settings of the engine process, their bounds, and the defaults of each device. Knows no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkle.engine.buckets import MAX_ROWS
from sparkle.engine.plan import MAX_DRAFT_TOKENS
from sparkle.errors import ConfigError
from sparkle.model.shapes import bundled_checkpoint
from sparkle.quiet.logs import LogLevel

GPU_PASS_TOKENS = 8448
"""66 tiles of 128 rows, as many as half of the H200's multiprocessors: no product leaves any without work."""
GPU_CHUNK_TOKENS = 4096
"""So much takes 0.2 s; half of it, a long prompt's part beside shorter ones, is whole tiles of 128 rows."""
MAX_DEFAULT_THREADS = 4
MAX_MASK_THREADS = 8
"""An answer's masks are made by one: more than that many have a shape in few passes."""
LEAST_DRAFT_VOCABULARY = 1024
"""Fewer tokens would hardly ever be right."""
OWN_HEAD = "mtp"
"""The draft model that is part of the checkpoint."""
NO_DRAFT_MODEL = "none"
MOST_TOKENS = 10**12
"""Far more than any memory holds: above it, sizes in bytes would fit no machine integer."""
MOST_THREADS = 1024
MOST_CACHE_S = 86_400.0
"""A day: what is kept in memory is kept for a short while."""
CPU_CACHED_SLOTS = 8
GPU_CACHED_SLOTS = 32
UNUSABLE_CODE = 2
"""The process's exit code where the model or a setting cannot be used: starting it again will not help."""


class Device(StrEnum):
    """What computes."""

    AUTO = "auto"  #: the H200 where there is one, else the CPU
    CPU = "cpu"  #: float32, for trying things out
    CUDA = "cuda"  #: the H200, or a refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much runs at once and how long it may be, every default filled in."""

    slots: int
    pass_tokens: int
    chunk_tokens: int
    page_tokens: int
    kv_tokens: int | None
    """None until the memory plan says what is left."""

    max_context_tokens: int | None
    cached_slots: int = 0
    cache_s: float = 0.0
    draft_tokens: int = 0
    draft_model: str | None = NO_DRAFT_MODEL
    """None is the checkpoint's own draft head, where it has one."""

    draft_vocab_size: int | None = None
    """None for all."""

    def __post_init__(self) -> None:
        if self.pass_tokens <= self.slots:
            raise ConfigError(
                f"pass_tokens is {self.pass_tokens} but must be above slots, {self.slots}: "
                "each running answer takes one, and prompts need the rest"
            )
        if self.kv_tokens is not None and self.kv_tokens < self.page_tokens:
            raise ConfigError(
                f"kv_tokens is {self.kv_tokens} but must be at least page_tokens, {self.page_tokens}"
            )

    @property
    def state_slots(self) -> int:
        """Slots in all."""
        return self.slots + self.cached_slots

    @property
    def num_pages(self) -> int:
        """KV pages in all."""
        assert self.kv_tokens is not None, "the memory plan fills it in"
        return self.kv_tokens // self.page_tokens

    def context_tokens(self, model_tokens: int) -> int:
        """Longest prompt and answer together with a model that was trained up to `model_tokens`."""
        return min(self.wanted_tokens(model_tokens), self.num_pages * self.page_tokens)

    def wanted_tokens(self, model_tokens: int) -> int:
        """The same, were there any amount of memory."""
        return min(self.max_context_tokens or model_tokens, model_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How much runs at once and how long it may be; what is None is chosen by the device.

    On the CPU that suits two cores and sparkle-tiny, on an H200 Qwen3.8-27B.
    """

    device: Device = Device.AUTO
    """What computes."""

    slots: int | None = None
    """Requests that run at once: 8 on the CPU; 64 on a GPU, at most 128."""

    pass_tokens: int | None = None
    """Rows of one pass at most: one for each answer being written, the rest read prompts.

    256 on the CPU, 8,448 on a GPU. So much of a prompt is read at once where nothing waits beside it.
    """

    chunk_tokens: int | None = None
    """Rows of one pass that read prompts beside answers being written, whose next tokens wait for them.

    256 on the CPU; 4,096 on a GPU, where they take 0.2 s, and more the further into a prompt they are. Twice
    as many where no other class was there for a while. Beside answers of shorter classes a long prompt gets
    an eighth of it on average, and less where those are many.
    """

    page_tokens: int | None = None
    """Tokens a KV page: 16 on the CPU, 64 on a GPU."""

    kv_tokens: int | None = None
    """Tokens whose keys and values fit in memory, over all requests.

    32,768 on the CPU, on a GPU all that is left of its memory.
    """

    max_context_tokens: int | None = None
    """Longest prompt and answer together; None is the model's own limit. Never more than kv_tokens."""

    cache_s: float = 600.0
    """Seconds that states of prompts and answers are kept after their last use, in the engine's memory alone.

    A prompt that begins with the same tokens, of the same tenant, is not read again up to there. They leave
    sooner where memory is needed. 0 keeps none.
    """

    cached_slots: int | None = None
    """Slots for such states beside those of `slots`: 8 on the CPU, 32 on a GPU; none where cache_s is 0.

    States take slots and pages that no request needs, too.
    """

    draft_tokens: int | None = None
    """Tokens that are guessed of an answer and checked in one pass, at most 15; 0 drafts nothing.

    15 where it is left out. Fewer are guessed where that is faster. Never changes an answer.
    """

    draft_model: str | None = None
    """What guesses where nothing can be copied: "mtp", the checkpoint's own draft head, the directory of a
    DFlash2 model, or "none".

    Left out it is the checkpoint's own head, where it has one. Nothing is loaded where draft_tokens is 0.
    """

    draft_vocab_size: int | None = None
    """Of all tokens the first so many, which are the frequent ones, that the draft model guesses among.

    All on the CPU; on a GPU, where they are most of what a guess costs, 65,536.
    """

    threads: int | None = None
    """Threads that compute; None is one a core but for one that is left to the worker, at most four."""

    prompt_threads: int = 2
    """Threads that turn jobs into prompts beside the step loop."""

    log_level: LogLevel = LogLevel.INFO
    """From which events on the engine's process tells them: ids and counts at every level."""

    kernel_cache: Path | None = None
    """Where compiled kernels are kept; None is Triton's own place. `sparkle kernels build` fills it."""

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "pass_tokens",
            "chunk_tokens",
            "page_tokens",
            "kv_tokens",
            "max_context_tokens",
        ):
            self._require_between(name, MOST_TOKENS)
        self._require_between("draft_vocab_size", MOST_TOKENS, least=LEAST_DRAFT_VOCABULARY)
        for name in ("threads", "prompt_threads"):
            self._require_between(name, MOST_THREADS)
        self._require_between("cached_slots", MOST_TOKENS, least=0)
        if not 0 <= self.cache_s <= MOST_CACHE_S:
            raise ConfigError(
                f"cache_s is {self.cache_s} but must be 0 to {MOST_CACHE_S:,.0f}; 0 keeps nothing"
            )
        if self.draft_tokens is not None and not 0 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"draft_tokens is {self.draft_tokens} but must be 0 to {MAX_DRAFT_TOKENS}")

    def _require_between(self, name: str, most: int, *, least: int = 1) -> None:
        value = getattr(self, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(
                f"{name} is {value} but must be {least:,} to {most:,}; leave it out for the default"
            )

    def sizes(self, device: Device) -> Sizes:
        """What is set, and the defaults of `device`, which is not AUTO. Raises ConfigError."""
        return self._gpu_sizes() if device is Device.CUDA else self._cpu_sizes()

    def compute_threads(self) -> int:
        """Threads that compute: as set, or by the cores that this process may use."""
        # a pass waits for its slowest thread: one on a busy core makes it many times slower than one fewer
        return self.threads or max(1, min(_usable_cores() - 1, MAX_DEFAULT_THREADS))

    def mask_threads(self) -> int:
        """Threads that compute masks of answers' shapes, while the device computes their logits."""
        return max(1, min(_usable_cores() - 1, MAX_MASK_THREADS))

    def _cpu_sizes(self) -> Sizes:
        return Sizes(
            slots=self.slots or 8,
            pass_tokens=self.pass_tokens or 256,
            chunk_tokens=self.chunk_tokens or 256,
            page_tokens=self.page_tokens or 16,
            kv_tokens=self.kv_tokens or 32_768,
            max_context_tokens=self.max_context_tokens,
            cached_slots=self._cached_slots(CPU_CACHED_SLOTS),
            cache_s=self.cache_s,
            draft_tokens=MAX_DRAFT_TOKENS if self.draft_tokens is None else self.draft_tokens,
            draft_model=self.draft_model,
            draft_vocab_size=self.draft_vocab_size,
        )

    def _gpu_sizes(self) -> Sizes:
        slots = self.slots or 64
        # every answer being written has a row of one graph
        if slots > MAX_ROWS:
            raise ConfigError(f"slots is {slots} but must be at most {MAX_ROWS} on a GPU")
        return Sizes(
            slots=slots,
            pass_tokens=self.pass_tokens or GPU_PASS_TOKENS,
            chunk_tokens=self.chunk_tokens or GPU_CHUNK_TOKENS,
            page_tokens=self.page_tokens or 64,
            kv_tokens=self.kv_tokens,
            max_context_tokens=self.max_context_tokens,
            cached_slots=self._cached_slots(GPU_CACHED_SLOTS),
            cache_s=self.cache_s,
            draft_tokens=MAX_DRAFT_TOKENS if self.draft_tokens is None else self.draft_tokens,
            draft_model=self.draft_model,
            draft_vocab_size=self.draft_vocab_size or 65_536,
        )

    def _cached_slots(self, default: int) -> int:
        if not self.cache_s:
            return 0
        return default if self.cached_slots is None else self.cached_slots


def _usable_cores() -> int:
    """Cores that this process may use; macOS knows only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_model() -> Path:
    """The model directory that comes with this package: sparkle-tiny."""
    return bundled_checkpoint()


def require_checkpoint(model: Path) -> None:
    """Raises ConfigError where the directory `model` is none, before a process is started for it."""
    if not (model / "config.json").is_file():
        raise ConfigError(f"model {model} is no checkpoint: it has no config.json")

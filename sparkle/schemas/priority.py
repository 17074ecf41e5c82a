"""From a job's length to its priority class: one pure function. Knows no queue and no clock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from sparkle.errors import ConfigError
from sparkle.schemas.job import Job

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 text a token, where no tokenizer is at hand."""


class PriorityClass(StrEnum):
    """Five classes by estimated service time; shorter goes first."""

    P0 = "p0"  #: up to 1 s
    P1 = "p1"  #: up to 4 s
    P2 = "p2"  #: up to 16 s
    P3 = "p3"  #: up to 64 s
    P4 = "p4"  #: longer


_TARGETS_S = MappingProxyType({priority: 4.0**power for power, priority in enumerate(PriorityClass)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRates:
    """How fast one worker serves one job; the defaults are one H200's."""

    prefill_tokens_per_s: float = 16_000.0
    """Prompt tokens read a second."""

    decode_tokens_per_s: float = 200.0
    """Answer tokens written a second, several conversations running."""

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "decode_tokens_per_s"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} is {value} but must be above 0")


def service_s(prompt_tokens: int, max_tokens: int, rates: ServiceRates) -> float:
    """Estimated seconds of service: prompt tokens / prefill rate + answer tokens / decode rate."""
    return prompt_tokens / rates.prefill_tokens_per_s + max_tokens / rates.decode_tokens_per_s


def classify(prompt_tokens: int, max_tokens: int, rates: ServiceRates) -> PriorityClass:
    """The class of a job of this length: limits are the powers of four 1, 4, 16 and 64 s."""
    seconds = service_s(prompt_tokens, max_tokens, rates)
    for power, priority in enumerate(
        (PriorityClass.P0, PriorityClass.P1, PriorityClass.P2, PriorityClass.P3)
    ):
        if seconds <= 4**power:
            return priority
    return PriorityClass.P4


def target_s(priority: PriorityClass) -> float:
    """How long it should take at most until the prompt of a job of this class is read.

    It is the class's longest service; of the last class, which has none, the next power of four.
    """
    return _TARGETS_S[priority]


def estimate_prompt_tokens(job: Job) -> int:
    """Length of the job's prompt: exact for token ids, bytes / 4 for text."""
    if job.prompt_tokens is not None:
        return len(job.prompt_tokens)
    size_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(job))
    return max(1, -(-size_bytes // BYTES_PER_TOKEN))


def _texts(job: Job) -> Iterable[str]:
    if job.prompt is not None:
        yield job.prompt
    for turn in job.messages or ():
        if isinstance(turn.content, str):
            yield turn.content
        else:
            yield from (part.text for part in turn.content if part.type == "text")
        yield turn.reasoning or ""
        for call in turn.tool_calls or ():
            yield from (call.name, json.dumps(call.arguments, ensure_ascii=False))
    for tool in job.tools or ():
        yield from (tool.name, tool.description or "", json.dumps(tool.parameters, ensure_ascii=False))

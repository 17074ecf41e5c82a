"""What every generating request has in common, and the jobs it comes to. Knows no endpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError

from sparkle.producers.gateway.faults import from_validation, invalid
from sparkle.producers.metering.bound import most_tokens
from sparkle.producers.openai_forms import EFFORTS, SAMPLING_FIELDS
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.json_object import JsonObject
from sparkle.schemas.message import ConversationId, Part
from sparkle.schemas.priority import PriorityClass, ServiceRates, classify, estimate_prompt_tokens

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


ModelName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
StopTexts = Annotated[
    list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(max_length=16)
]


class StreamOptions(Part):
    """What a stream says beside the answer."""

    include_usage: bool | None = None
    """Whether its last event tells what the answer used."""

    continuous_usage_stats: bool | None = None
    """vLLM's: usage in every event. Taken and told in the last one alone, since it is known then."""

    include_obfuscation: bool | None = None
    """OpenAI's padding against who counts encrypted bytes. Taken and not done: a proxy's matter."""


class Asked(Part):
    """The fields of every generating request. Null is the same as left out."""

    model: ModelName | None = None
    """Which model is to answer; left out, the tenant's own."""

    stream: bool | None = None
    """Whether the answer comes in pieces, as server-sent events."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    metadata: JsonObject | None = None
    """Not read; a response has it again."""

    user: str | None = None
    """Not read."""

    safety_identifier: str | None = None
    """Not read."""

    prompt_cache_key: str | None = None
    """Not read: what prompts begin with in common is found without it."""

    service_tier: Literal["auto", "default"] | None = None

    store: Literal[False] | None = None
    """Nothing is ever kept."""

    priority: PriorityClass | None = None
    """A class to wait in, where that is later than the one of the job's length."""

    deadline_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Seconds from now; then the answer is of no more use."""

    conversation: ConversationId | None = None
    """Requests of one conversation can reuse each other's state."""


class Penalties(Part):
    """How tokens seen before are treated, the seed, where it ends: not in the Responses form."""

    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: StopTexts | None = None
    ignore_eos: bool | None = None
    """vLLM's: the answer goes on behind the model's end tokens, up to `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Order:
    """One answer to be got from the queue."""

    job: Job
    priority: PriorityClass
    most_tokens: int
    """Prompt and answer together: a bound, told without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds where a request does not say."""

    tenant: str
    region: str
    max_tokens: int
    deadline_s: float
    max_choices: int
    rates: ServiceRates


def order(asked: Asked, fields: Mapping[str, object], defaults: Defaults) -> Order:
    """The order of one answer; `fields` are the job's own. Raises ApiFault."""
    deadline_s = asked.deadline_s if asked.deadline_s is not None else defaults.deadline_s
    given: dict[str, object] = {
        "id": new_job_id(),
        "tenant": defaults.tenant,
        "region": defaults.region,
        "conversation": asked.conversation,
        "max_tokens": defaults.max_tokens,
        "deadline_ms": int((time.time() + deadline_s) * 1000),
        **{name: value for name, value in fields.items() if value is not None},
    }
    try:
        job = Job.model_validate(given)
    except ValidationError as error:
        raise from_validation(error) from None
    own = classify(estimate_prompt_tokens(job), job.max_tokens, defaults.rates)
    return Order(job, max(own, asked.priority or own), most_tokens(job))


def orders(asked: Asked, fields: Mapping[str, object], count: int, defaults: Defaults) -> tuple[Order, ...]:
    """`count` answers to the same: with a seed, each has one of its own. Raises ApiFault."""
    if not 1 <= count <= defaults.max_choices:
        raise invalid(f"n: is {count} but must be 1 to {defaults.max_choices}", "n")
    return tuple(order(asked, _varied(fields, index), defaults) for index in range(count))


def _varied(fields: Mapping[str, object], index: int) -> Mapping[str, object]:
    drawn = cast("Mapping[str, object]", fields.get("sampling", {}))
    seed = drawn.get("seed")
    if not isinstance(seed, int) or index == 0:
        return fields
    return {**fields, "sampling": {**drawn, "seed": (seed + index) % 2**63}}


def sampling(asked: Asked, *more: tuple[str, object]) -> dict[str, object]:
    """The job's sampling: what is given of the fields of that name, and `more`."""
    pairs = [*((name, getattr(asked, name, None)) for name in SAMPLING_FIELDS), *more]
    return {name: value for name, value in pairs if value is not None}


def thinking(effort: Effort | None) -> str | None:
    """The job's thinking; None is the contract's default."""
    return None if effort is None else EFFORTS[effort]

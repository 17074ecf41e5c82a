"""A request to /v1/completions, and the orders it comes to. Knows no answer."""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import BeforeValidator, Field

from sparkle.producers.gateway.asked import (
    Asked,
    Defaults,
    Order,
    Penalties,
    StreamOptions,
    orders,
    sampling,
)
from sparkle.producers.gateway.faults import invalid

Tokens = list[int]


def _as_prompts(value: object) -> object:
    """One text, or the tokens of one, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return value
    entries = cast("list[object]", value)
    return [entries] if entries and all(type(entry) is int for entry in entries) else entries


Prompts = Annotated[
    list[str] | list[Tokens],
    BeforeValidator(_as_prompts, json_schema_input_type=str | list[str] | Tokens | list[Tokens]),
    Field(min_length=1, max_length=1024),
]


class CompletionRequest(Asked, Penalties):
    """Texts, or tokens, to go on from."""

    prompt: Prompts
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    """Only the same as n: no answer is thrown away."""

    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what the answers used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def completion_orders(asked: CompletionRequest, defaults: Defaults) -> tuple[Order, ...]:
    """One order a choice, those of the first prompt first. Raises ApiFault."""
    count = 1 if asked.n is None else asked.n
    if asked.best_of not in (None, count):
        raise invalid("best_of: must be as n, or left out", "best_of")
    if asked.stream_options is not None and not asked.stream:
        raise invalid("stream_options: needs stream to be true", "stream_options")
    if len(asked.prompt) * max(1, count) > defaults.max_choices:
        limit = f"prompts times n may be at most {defaults.max_choices}; send several requests"
        raise invalid(f"prompt: {limit}", "prompt")
    fields: dict[str, object] = {
        "max_tokens": asked.max_tokens,
        "sampling": sampling(asked, ("logprobs", asked.logprobs)),
    }
    return tuple(
        order
        for prompt in asked.prompt
        for order in orders(
            asked,
            {**fields, "prompt" if isinstance(prompt, str) else "prompt_tokens": prompt},
            count,
            defaults,
        )
    )

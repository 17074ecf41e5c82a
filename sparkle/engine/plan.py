"""What scheduler and runner tell each other: the plan of one pass and its result. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.schemas.job import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One request's part of a pass: some tokens to read, maybe a next token to draw."""

    request: str
    """Which request."""

    slot: int
    """Its state slot: recurrent state and convolution columns."""

    start: int
    """Tokens of the request already computed: the position of `tokens[0]`."""

    tokens: tuple[int, ...]
    """The tokens to read now, at least one."""

    pages: tuple[int, ...]
    """The request's KV pages in order, enough for start + len(tokens)."""

    draws: bool
    """Whether the next token is drawn from the logits of the last token read."""

    fresh: bool
    """Whether this is the first pass on the slot: the runner zeroes its state before it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass through the model. Spans are of different requests; an empty plan is no pass."""

    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the pass."""
        return sum(len(span.tokens) for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A token drawn, with log probabilities where the job asked for them."""

    request: str
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What came of a pass: one entry for each span that draws, in the plan's order."""

    drawn: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """What the sampler must know of a request that draws, beside the logits."""

    sampling: Sampling
    seed: int
    """The job's seed: given, or made of its id."""

    prompt_tokens: tuple[int, ...]
    """For the repetition penalty."""

    answer_tokens: tuple[int, ...]
    """For the penalties; their number is the position drawn."""

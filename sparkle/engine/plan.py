"""What scheduler and runner tell each other: the plan of one pass and its result. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

MAX_DRAFT_TOKENS = 15
"""Of one request in one pass: with its last token they fill the delta rule's window."""

TO_GUESS = -1
"""Stands in a draft for a token that the runner's draft model guesses during the pass."""


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
    """The tokens to read now, at least one; the draft is the last of them."""

    pages: tuple[int, ...]
    """All of the request's KV pages in order, at least enough for start + len(tokens)."""

    draws: bool
    """Whether the next token is drawn from the logits of the last token read: with a draft, several, one
    behind each token of it and one behind the token in front of it."""

    fresh: bool
    """Whether slot and pages are the request's since this pass: the runner notes which pages they are."""

    draft: tuple[int, ...] = ()
    """Guesses of what follows the request's last token, at most MAX_DRAFT_TOKENS: `tokens` is that one and
    these, and draws is true. What the model does not draw itself is taken back. All are tokens, or all are
    TO_GUESS."""

    following: int | None = None
    """The token behind the last of `tokens`, where it is known: that of a prompt which is read on later."""

    @property
    def guesses(self) -> int:
        """Tokens that the draft model is to guess during the pass."""
        return self.draft.count(TO_GUESS)

    def with_draft(self, draft: tuple[int, ...]) -> Span:
        """The same with other guesses behind its last known token."""
        known = self.tokens[: len(self.tokens) - len(self.draft)]
        return replace(self, tokens=(*known, *draft), draft=draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What is to be done to slots and pages beside a pass, in this order; the pass comes before `saved`.

    A copy is a pair: from, to. Nothing that is copied from is written to in the same pass.
    """

    wiped_slots: tuple[int, ...] = ()
    """They became free: nothing of what they hold may stay."""

    wiped_pages: tuple[int, ...] = ()
    """The same."""

    page_copies: tuple[tuple[int, int], ...] = ()
    """A checkpoint's last page, for a request that writes on behind it."""

    restored: tuple[tuple[int, int], ...] = ()
    """A checkpoint's slot, for a request that goes on from it."""

    saved: tuple[tuple[int, int], ...] = ()
    """A request's slot behind its span of this pass, for a checkpoint."""


NO_UPKEEP = Upkeep()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass through the model. Spans are of different requests; there may be none."""

    spans: tuple[Span, ...]
    upkeep: Upkeep = NO_UPKEEP

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
    """What came of a pass: each span that draws is in one of the two, in the plan's order."""

    drawn: tuple[Drawn, ...]
    """One token a span; of a span with a draft, as many as agree with it and the one after them, in order.
    None behind one that ends the answer: the state then is that of its tokens, and can be gone on from.
    As many of the span's rows stay in the cache: those that the drawn tokens follow."""

    broken: tuple[str, ...] = ()
    """Requests whose logits are not finite: no token can be drawn."""

    guessed: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of each request whose draft was TO_GUESS: the tokens that the draft model guessed, fewer where the
    request's shape refused one."""

    @property
    def by_request(self) -> dict[str, list[Drawn]]:
        """The tokens drawn of each request, in order; a request of which none was drawn is not there."""
        found: dict[str, list[Drawn]] = {}
        for one in self.drawn:
            found.setdefault(one.request, []).append(one)
        return found


def joined(spans: Sequence[Span], *results: PassResult) -> PassResult:
    """The results of parts of a pass as one, its requests as they stand in `spans`."""
    places = {span.request: place for place, span in enumerate(spans)}
    return PassResult(
        drawn=tuple(
            sorted(
                (one for result in results for one in result.drawn), key=lambda drawn: places[drawn.request]
            )
        ),
        broken=tuple(
            sorted((one for result in results for one in result.broken), key=lambda broken: places[broken])
        ),
        guessed={request: draft for result in results for request, draft in result.guessed.items()},
    )

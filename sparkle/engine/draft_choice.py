"""Chooses the drafts of a pass, and learns from what of them was kept. Knows no torch, no model, no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.combined import Combined
from sparkle.drafting.draft import Draft
from sparkle.drafting.width import PLAIN
from sparkle.engine.plan import TO_GUESS, PassPlan
from sparkle.engine.scheduler import Written

REST_PASSES = 8
"""Passes of the same requests until it is asked again whether guesses pay that did not: asking takes time."""
COPY_ANYWAY = 32
"""Of so many copies that are expected to keep less than the draft model's guesses one is checked even so."""


CountAllowed = Callable[[str, Sequence[int]], int]
"""(request, draft) -> how many of its tokens may follow, to the first that the request's shape refuses."""


def allow_all(_request: str, draft: Sequence[int]) -> int:
    """No answer is kept to a shape."""
    return len(draft)


class Widths(Protocol):
    """Chooses how wide a pass is: `drafting.width.WidthControl`."""

    def choose(self, sequences: int, offers: Mapping[str, Sequence[str]], *, guesses: bool) -> int:
        """Rows of a sequence at most, with its last token; `offers`: of each draft who guessed each token.

        `guesses`: the draft model will make some of them.
        """
        ...

    def passed(
        self, sequences: int, width: int, *, guesses: bool, kept_tokens: int, took_ms: float | None
    ) -> None:
        """What came of the pass, and what it took where it read no prompts."""
        ...


class DraftChoice:
    """Gives each pass its drafts: forced tokens and copies, or places for the draft model's guesses."""

    def __init__(
        self,
        proposers: Combined,
        widths: Widths,
        acceptance: Acceptance,
        *,
        draft_tokens: int,
        draft_model: str | None = None,
        count_allowed: CountAllowed = allow_all,
    ) -> None:
        """`draft_tokens`: of one request in a pass at most; `draft_model`: its name, where one guesses: what
        `count_allowed` says is for the pass to ask then.
        """
        self._proposers = proposers
        self._widths = widths
        self._acceptance = acceptance
        self._draft_tokens = draft_tokens
        self._draft_model = draft_model
        self._count_allowed = count_allowed
        self._passed_over: Counter[str] = Counter()
        # these have no guesses in so many passes more
        self._resting: Collection[str] = ()
        self._rest_passes = 0
        # of the last plan
        self._decoding: Collection[str] = ()
        self._chosen: dict[str, Draft] = {}

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        self._proposers.start(request, prompt)

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        self._proposers.add(request, tokens)

    def end(self, request: str) -> None:
        """Forget the request, which is here."""
        self._proposers.end(request)
        self._acceptance.end(request)
        self._passed_over.pop(request, None)

    def choose(self, rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
        """A `scheduler.Drafts`."""
        self._decoding = rooms.keys()
        guesses = self._draft_model is not None and not self._rests()
        offers = {
            request: self._offer(request, min(room, self._draft_tokens), guesses=guesses)
            for request, room in rooms.items()
        }
        offers = {request: offer for request, offer in offers.items() if offer}
        width = self._width(len(rooms), offers)
        if width == PLAIN and any(map(_is_guessed, offers.values())):
            self._resting, self._rest_passes = rooms.keys(), REST_PASSES - 1
            # without the draft model's time the copies may pay
            offers = {request: offer for request, offer in offers.items() if not _is_guessed(offer)}
            width = self._width(len(rooms), offers)
        self._chosen = {request: offer.first(width - 1) for request, offer in offers.items()}
        return {request: draft.tokens for request, draft in self._chosen.items()}

    def sources(self, plan: PassPlan) -> dict[str, tuple[str, ...]]:
        """Of each request with a draft in the last plan, this one, who guessed each token of it."""
        return {
            span.request: self._chosen[span.request].sources[: len(span.draft)]
            for span in plan.spans
            if span.draft
        }

    def passed(self, plan: PassPlan, written: Sequence[Written], took_ms: float) -> None:
        """The pass of the last plan wrote this and took so long; due before `end` of what ended with it."""
        kept = Counter(one.drawn.request for one in written)
        right = Counter(one.drawn.request for one in written if one.guessed)
        for request, sources in self.sources(plan).items():
            # each token written was compared with a guess, but for the one that came on top
            if kept[request]:
                tried = min(kept[request], len(sources))
                self._acceptance.checked(request, sources, right[request], tried=tried)
        decoding = [span for span in plan.spans if span.request in self._decoding]
        if decoding:
            self._widths.passed(
                len(decoding),
                max(len(span.tokens) for span in decoding),
                guesses=any(span.guesses for span in decoding),
                kept_tokens=sum(kept[span.request] for span in decoding),
                took_ms=took_ms if len(decoding) == len(plan.spans) else None,
            )

    def _width(self, sequences: int, offers: Mapping[str, Draft]) -> int:
        if not offers:
            return PLAIN
        sources = {request: offer.sources for request, offer in offers.items()}
        return self._widths.choose(sequences, sources, guesses=any(map(_is_guessed, offers.values())))

    def _rests(self) -> bool:
        """Whether guesses were found not to pay a few passes ago; one pass is over."""
        if self._rest_passes and self._resting == self._decoding:
            self._rest_passes -= 1
            return True
        self._rest_passes = 0
        return False

    def _offer(self, request: str, room: int, *, guesses: bool) -> Draft:
        """Forced tokens and a copy where there are any, elsewhere the draft model's guesses.

        Where both could be, the one of which more is expected to be kept. `guesses`: if there may be any.
        """
        copy = self._proposers.propose(request, room) if room else Draft()
        # behind what may not follow nothing can be kept
        copy = copy.first(self._count_allowed(request, copy.tokens))
        if not guesses or self._draft_model is None:
            return copy
        guess = Draft((TO_GUESS,) * room, (self._draft_model,) * room)
        if not copy or self._kept(request, copy) >= self._kept(request, guess):
            return copy or guess
        self._passed_over[request] += 1
        return guess if self._passed_over[request] % COPY_ANYWAY else copy

    def _kept(self, request: str, draft: Draft) -> float:
        """Tokens of it that are expected to be kept."""
        return sum(self._acceptance.chances(request, draft.sources))


def _is_guessed(offer: Draft) -> bool:
    """Whether the draft model is to make it."""
    return TO_GUESS in offer.tokens

"""One request: its tokens, what it holds, its state and the table of legal moves. Knows no torch, no text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from sparkle.engine.blocks import BlockChain
from sparkle.engine.checkpoint_places import CheckpointPlaces
from sparkle.engine.checkpoints import Checkpoint
from sparkle.errors import IllegalMove
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.priority import PriorityClass


class RequestState(StrEnum):
    """Where a request is in its life; why it ended is `Request.finish`."""

    WAITING = "waiting"  #: holds nothing yet
    READING = "reading"  #: holds a slot and pages, its prompt is being read, or its answer again
    DECODING = "decoding"  #: its prompt is read, each pass draws a token
    ENDED = "ended"  #: holds nothing any more


LEGAL: Mapping[RequestState, frozenset[RequestState]] = MappingProxyType(
    {
        RequestState.WAITING: frozenset({RequestState.READING, RequestState.ENDED}),
        RequestState.READING: frozenset({RequestState.DECODING, RequestState.WAITING, RequestState.ENDED}),
        RequestState.DECODING: frozenset({RequestState.WAITING, RequestState.ENDED}),
        RequestState.ENDED: frozenset(),
    }
)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """What the scheduler knows of a job. computed <= prompt + answer <= worst_case_tokens."""

    id: str
    """The job's id."""

    prompt: tuple[int, ...]
    """The prompt's tokens, at least one."""

    max_answer_tokens: int
    """The answer ends here at the latest, at least one; the context's end is already counted in."""

    stop_tokens: frozenset[int]
    """Tokens that end the answer: the model's own and the job's."""

    priority: PriorityClass
    """Shorter classes go first."""

    arrived_s: float
    """When it came, on the engine's clock."""

    deadline_s: float = math.inf
    """When its answer is of no more use, on the same clock."""

    tenant: str | None = None
    """Whose it is."""

    conversation: str | None = None
    """Which of the tenant's conversations it is part of."""

    state: RequestState = field(default=RequestState.WAITING, init=False)
    """Changed by `move_to` alone."""

    arrival: int = field(default=0, init=False)
    """Place in the order of arrival, set by the scheduler."""

    round: int = field(default=0, init=False)
    """Its tenant's place among the others in its class, set by the scheduler."""

    answer: list[int] = field(default_factory=list[int])
    """Tokens drawn so far; at first those that an earlier attempt at the job drew."""

    preemptions: int = field(default=0, init=False)
    """How often it has given way to another one."""

    _reread_tokens: int = field(default=0, init=False)
    """Tokens of the answer then, or when it came."""

    computed: int = field(default=0, init=False)
    """Tokens whose keys, values and state are in the cache."""

    slot: int | None = field(default=None, init=False)
    """Its state slot while it is read or decodes."""

    pages: tuple[int, ...] = field(default=(), init=False)
    """Its KV pages, in order, while it is read or decodes."""

    placed: bool = field(default=False, init=False)
    """Whether the runner knows its slot and pages: a pass with it was planned."""

    chain: BlockChain | None = field(default=None, init=False)
    """The names of its tokens' blocks; None where nothing is kept of any request. Set by Holdings, as
    the next two are."""

    places: CheckpointPlaces | None = field(default=None, init=False)
    """Where checkpoints are taken while its prompt is read."""

    checkpoints: list[Checkpoint] = field(default_factory=list[Checkpoint], init=False)
    """What it went on from, and what was taken of it."""

    leaves_state: bool = field(default=True, init=False)
    """Whether its state may be kept when it has ended; not where its conversation has."""

    finish: FinishReason | None = field(default=None, init=False)
    """Why the answer ended; None before, and for a request that ended without an answer."""

    def __post_init__(self) -> None:
        self._reread_tokens = len(self.answer)

    @property
    def worst_case_tokens(self) -> int:
        """Length if the answer is as long as it may be."""
        return len(self.prompt) + self.max_answer_tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return (*self.prompt, *self.answer) if self.answer else self.prompt

    @property
    def reading_tokens(self) -> int:
        """Tokens to be read until the next one is drawn: the prompt, and what the answer began with."""
        return len(self.prompt) + self._reread_tokens

    @property
    def unread_tokens(self) -> int:
        """Of these the tokens that are still to be read."""
        return max(0, self.reading_tokens - self.computed)

    @property
    def next_tokens(self) -> int:
        """Of the unread ones those that a pass may read: up to where a checkpoint is to be taken."""
        unread = self.unread_tokens
        return unread if self.places is None else min(unread, self.places.next(self.computed) - self.computed)

    def give_way(self) -> None:
        """It has given up what it held, and waits again: what it has written is read then."""
        self.move_to(RequestState.WAITING)
        self.preemptions += 1
        self.computed, self._reread_tokens = 0, len(self.answer)

    def move_to(self, state: RequestState) -> None:
        """Change the state. Raises IllegalMove where LEGAL has no such move."""
        if state not in LEGAL[self.state]:
            raise IllegalMove(f"request {self.id} cannot move from {self.state} to {state}")
        self.state = state

    def finish_reason(self) -> FinishReason | None:
        """Why the answer ends with its last token, if it does."""
        if self.answer[-1] in self.stop_tokens:
            return FinishReason.STOP
        if len(self.answer) >= self.max_answer_tokens:
            return FinishReason.LENGTH
        return None

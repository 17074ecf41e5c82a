"""What the sampler keeps of one request from token to token. Knows neither the model nor other requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.engine.shaped_answer import ShapedAnswer
from sparkle.engine.transfer import to_device
from sparkle.engine.uniform import stream_of, uniform
from sparkle.errors import GrammarError
from sparkle.schemas.job import Sampling

CPU = torch.device("cpu")
LARGEST = torch.finfo(torch.float32).max


class SeenTokens:
    """Which tokens a request has seen, for its penalties: kept only where one is set."""

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], vocab_size: int, device: torch.device
    ) -> None:
        self._sampling = sampling
        self._in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._in_prompt.index_fill_(0, to_device(prompt, torch.int64, device), value=True)
        self._counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)

    def add(self, token: int) -> None:
        """One more token of the answer."""
        self._counts[token] += 1.0

    def add_all(self, tokens: Sequence[int]) -> None:
        """The same of many at once."""
        seen = to_device(tokens, torch.int64, self._counts.device)
        self._counts.index_add_(0, seen, torch.ones(len(tokens), device=self._counts.device))

    def wipe(self) -> None:
        """Overwrite what tells which tokens were seen: the memory goes to whoever is next."""
        self._in_prompt.zero_()
        self._counts.zero_()

    def penalise(self, logits: Tensor, draft: Sequence[int] = ()) -> Tensor:
        """The logits, float32 [1 + len(draft), vocab], less attractive where tokens were seen.

        The first row follows what was added; each further one has seen one more token of the draft.

        Repetition (Keskar et al. 2019, "CTRL", section 4.1): what was seen in prompt or answer is divided by
        the penalty where positive, multiplied where negative. Then, for the answer alone,
        logit - frequency * count - presence * (count > 0). The result is finite, whatever the penalties.
        """
        counts = self._counts_along(draft)
        in_answer = counts > 0
        factor = self._sampling.repetition_penalty
        repeated = torch.where(logits > 0, logits / factor, logits * factor)
        logits = torch.where(self._in_prompt | in_answer, repeated, logits)
        logits = logits - self._sampling.frequency_penalty * counts
        logits = logits - self._sampling.presence_penalty * in_answer.float()
        # a tiny repetition penalty overflows, and of two infinite logits neither is the likelier one
        return logits.clamp(-LARGEST, LARGEST)

    def _counts_along(self, draft: Sequence[int]) -> Tensor:
        """Float32 [1 + len(draft), vocab]: of each row, how often the answer has each token."""
        if not draft:
            return self._counts[None]
        device = self._counts.device
        counts = self._counts.repeat(1 + len(draft), 1)
        behind = [
            (row, token) for place, token in enumerate(draft) for row in range(place + 1, 1 + len(draft))
        ]
        rows = to_device([row for row, _ in behind], torch.int64, device)
        tokens = to_device([token for _, token in behind], torch.int64, device)
        ones = torch.ones(len(behind), device=device)
        return counts.index_put_((rows, tokens), ones, accumulate=True)


class DrawState:
    """One request's settings and the place it draws for."""

    def __init__(
        self,
        request: str,
        sampling: Sampling,
        seed: int,
        prompt: Sequence[int],
        vocab_size: int,
        device: torch.device = CPU,
        stop_tokens: frozenset[int] = frozenset(),
        shape: ShapedAnswer | None = None,
    ) -> None:
        """`device`: where the logits will be; nothing is drawn behind one of `stop_tokens`, and nothing that
        `shape` does not allow. Who accepts its tokens is the shape's owner, after the pass.
        """
        self.request = request
        self.sampling = sampling
        self.stop_tokens = stop_tokens
        self.shape = shape
        self.position = 0
        self._stream = stream_of(seed)
        # uniform numbers of places from _made_from on
        self._made: list[float] = []
        self._made_from = 0
        penalised = (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )
        self.seen = SeenTokens(sampling, prompt, vocab_size, device) if penalised else None
        self.greedy = sampling.temperature == 0.0

    def chance(self, ahead: int = 0) -> float:
        """The uniform number of the place that is drawn for, or of one `ahead` of it."""
        return uniform(self._stream, self.position + ahead)

    def chances(self, count: int) -> list[float]:
        """The same of that place and those behind it, `count` in all."""
        self.look_ahead(count)
        start = self.position - self._made_from
        return self._made[start : start + count]

    def look_ahead(self, count: int) -> None:
        """Make the numbers of so many places now, and forget those of places that are past."""
        del self._made[: self.position - self._made_from]
        self._made_from = self.position
        made = range(self.position + len(self._made), self.position + count)
        self._made += [uniform(self._stream, place) for place in made]

    def replay(self, tokens: Sequence[int]) -> None:
        """The answer's first tokens, which an earlier attempt drew: draw for what follows them."""
        self.position += len(tokens)
        if self.seen is not None and tokens:
            self.seen.add_all(tokens)

    def cut(self, draft: tuple[int, ...]) -> tuple[int, ...]:
        """As much of a draft as the shape allows; nothing of it where the shape's state is lost."""
        if self.shape is None:
            return draft
        try:
            return draft[: self.shape.count_allowed(draft)]
        except GrammarError:
            return ()

    def accept(self, token: int) -> None:
        """The token drawn for this position; the next one is for the position after it."""
        self.position += 1
        if self.seen is not None:
            self.seen.add(token)

    def wipe(self) -> None:
        """The request has ended: nothing on the device tells of its tokens."""
        if self.seen is not None:
            self.seen.wipe()

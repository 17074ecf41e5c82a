"""From logits to tokens, all rows of a pass at once. A row's token never depends on the other rows.

Order: penalties, temperature, top_k, top_p (of the mass top_k left), min_p (of the likeliest), then the one
uniform number of (seed, position) picks from what is left. Log probabilities are of the model's own
distribution: before penalties, temperature and truncation. Everything happens on the logits' device, which is
waited for once, when the tokens are read.

A draft is checked by drawing: each of its rows draws the token that would be drawn there without a draft, and
the first that differs is the last that counts. So a draft changes how many tokens a pass writes, never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.transfer import to_device
from sparkle.kernels import ops

NARROW = 64
"""Rows that keep at most so many tokens are drawn apart from wider ones, which take much longer."""
_UNIT = 2.0**44
"""Weights become whole numbers of 1 / _UNIT: sums of 2^18 of them are exact, in any order."""

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of logits: which request's, and how many tokens of its draft stand in front of it."""

    state: DrawState
    ahead: int

    @property
    def chance(self) -> float:
        """The uniform number of the place that is drawn for."""
        return self.state.chance(self.ahead)


class Sampler:
    """Draws for a model with `vocab_size` tokens; logits beyond them are padding that is never drawn."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def draw(
        self, logits: Tensor, states: Sequence[DrawState], drafts: Sequence[Sequence[int]] | None = None
    ) -> PassResult:
        """The next tokens of each state, which is moved on by them; `drafts` has one for each, () for none.

        `logits`, float32 [rows, padded vocab]: of each state one row, and one behind each token of its draft.
        One token is drawn without a draft; with one, as many as agree with it, and the one after them.
        A state whose first row has a logit that is not finite is broken: nothing is drawn, it stays. Such a
        row further on ends what counts of its draft: without one it is the first of the next pass.
        """
        if not states:
            return PassResult(drawn=())
        drafts = drafts or [()] * len(states)
        rows = [
            _Row(state, ahead)
            for state, draft in zip(states, drafts, strict=True)
            for ahead in range(1 + len(draft))
        ]
        logits = logits[:, : self.vocab_size]
        # one bad number makes the row's sum bad
        finite = logits.sum(dim=1).isfinite()
        chosen = _choose(_penalised(logits, states, drafts), rows)
        asked = _Logprobs(logits, rows, chosen)
        tokens, goods = _lists(torch.stack((chosen, finite.long())))
        logprobs = asked.read()
        drawn: list[Drawn] = []
        broken: list[str] = []
        first = 0
        for state, draft in zip(states, drafts, strict=True):
            # no guess stands behind the last row
            for row, guess in enumerate((*draft, None), start=first):
                if not goods[row]:
                    if row == first:
                        broken.append(state.request)
                    break
                logprob, top = logprobs.get(row, (None, ()))
                drawn.append(Drawn(request=state.request, token=tokens[row], logprob=logprob, top=top))
                state.accept(tokens[row])
                if tokens[row] != guess:
                    break
            first += 1 + len(draft)
        return PassResult(drawn=tuple(drawn), broken=tuple(broken))


def _choose(logits: Tensor, rows: Sequence[_Row]) -> Tensor:
    """int64 [rows]; of a broken row any token."""
    if all(row.state.greedy for row in rows):
        return logits.argmax(dim=1)
    widths = [_width(row.state, logits.shape[1]) for row in rows]
    narrow = [place for place, width in enumerate(widths) if width <= NARROW]
    wide = [place for place, width in enumerate(widths) if width > NARROW]
    if not (narrow and wide):
        return _sample(logits, rows, widths)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for kind in (narrow, wide):
        places = to_device(kind, torch.int64, logits.device)
        tokens[places] = _sample(
            logits[places], [rows[place] for place in kind], [widths[place] for place in kind]
        )
    return tokens


def _penalised(logits: Tensor, states: Sequence[DrawState], drafts: Sequence[Sequence[int]]) -> Tensor:
    if all(state.seen is None for state in states):
        return logits
    parts: list[Tensor] = []
    first = 0
    for state, draft in zip(states, drafts, strict=True):
        part = logits[first : first + 1 + len(draft)]
        parts.append(part if state.seen is None else state.seen.penalise(part, draft))
        first += len(part)
    return torch.cat(parts)


def _width(state: DrawState, vocab_size: int) -> int:
    """Tokens to draw from; temperature 0 is top_k 1."""
    return 1 if state.greedy else min(state.sampling.top_k or vocab_size, vocab_size)


def _sample(logits: Tensor, rows: Sequence[_Row], widths: Sequence[int]) -> Tensor:
    """Inverse-CDF sampling over the `widths` likeliest tokens of each row.

    Sums are of whole numbers, so that neither a wider row beside this one nor the device changes them.
    """
    values, ids = ops.largest(logits, max(widths))
    temperature, top_p, min_p, chance, width = _columns(rows, widths, logits.device)
    scores = values.double()
    # the largest is taken off first: what overflows at a tiny temperature is then only ever -inf
    weights = ((scores - scores[:, :1]) / temperature).exp()
    weights = weights * (torch.arange(max(widths), device=logits.device) < width)
    shares = (weights * _UNIT).long()
    cumulative = shares.cumsum(dim=1)
    kept = (cumulative - shares) < top_p * cumulative[:, -1:]
    kept &= weights >= min_p
    # a broken row keeps nothing
    last = (kept.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    targets = chance * cumulative.gather(1, last)
    picks = torch.minimum((cumulative <= targets).sum(dim=1, keepdim=True), last)
    return ids.gather(1, picks)[:, 0]


def _columns(rows: Sequence[_Row], widths: Sequence[int], device: torch.device) -> Sequence[Tensor]:
    """Temperature, top_p, min_p, the uniform number and the width of each row, float64 [rows, 1] each."""
    samplings = [row.state.sampling for row in rows]
    numbers = [sampling.temperature or 1.0 for sampling in samplings]
    numbers += [sampling.top_p for sampling in samplings]
    numbers += [sampling.min_p for sampling in samplings]
    numbers += [row.chance for row in rows]
    numbers += widths
    return to_device(numbers, torch.float64, device).view(5, len(rows), 1).unbind()


class _Logprobs:
    """For each row that asked: the token's log probability, and the likeliest tokens with theirs."""

    def __init__(self, logits: Tensor, rows: Sequence[_Row], tokens: Tensor) -> None:
        self._counts: dict[int, int] = {}
        self._values: list[Tensor] = []
        self._ids: list[Tensor] = []
        for place, row in enumerate(rows):
            wanted = row.state.sampling.logprobs
            if wanted is None:
                continue
            count = min(wanted, logits.shape[1])
            exact = logits[place].double()
            exact = exact - exact.logsumexp(dim=0)
            # the token itself is the first
            ids = tokens[place : place + 1]
            if count:
                ids = torch.cat((ids, ops.largest(logits[place : place + 1], count)[1][0]))
            self._counts[place] = count
            self._values.append(exact.gather(0, ids))
            self._ids.append(ids)

    def read(self) -> dict[int, Logprobs]:
        """Wait for the device, by row."""
        if not self._counts:
            return {}
        values, ids = _floats(torch.cat(self._values)), _ints(torch.cat(self._ids))
        found: dict[int, Logprobs] = {}
        start = 0
        for row, count in self._counts.items():
            end = start + 1 + count
            found[row] = values[start], tuple(zip(ids[start + 1 : end], values[start + 1 : end], strict=True))
            start = end
        return found


def _lists(values: Tensor) -> list[list[int]]:
    return cast("list[list[int]]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists


def _ints(values: Tensor) -> list[int]:
    return cast("list[int]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists


def _floats(values: Tensor) -> list[float]:
    return cast("list[float]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists

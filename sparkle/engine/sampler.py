"""From logits to tokens, all rows of a pass at once. A row's token never depends on the other rows.

Order: penalties, temperature, top_k, top_p (of the mass top_k left), min_p (of the likeliest), then the one
uniform number of (seed, position) picks from what is left. Log probabilities are of the model's own
distribution: before penalties, temperature and truncation. Everything happens on the logits' device, which is
waited for once, when the tokens are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.transfer import to_device
from sparkle.engine.uniform import uniform
from sparkle.kernels import ops

NARROW = 64
"""Rows that keep at most so many tokens are drawn apart from wider ones, which take much longer."""
_UNIT = 2.0**44
"""Weights become whole numbers of 1 / _UNIT: sums of 2^18 of them are exact, in any order."""

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


class Sampler:
    """Draws for a model with `vocab_size` tokens; logits beyond them are padding that is never drawn."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def draw(self, logits: Tensor, states: Sequence[DrawState]) -> PassResult:
        """One token a row of `logits`, float32 [len(states), padded vocab], and each state moved on by it.

        A row with a logit that is not finite is broken: nothing is drawn, its state stays.
        """
        if not states:
            return PassResult(drawn=())
        logits = logits[:, : self._vocab_size]
        # one bad number makes the row's sum bad
        finite = logits.sum(dim=1).isfinite()
        chosen = _choose(logits, states)
        asked = _Logprobs(logits, states, chosen)
        tokens, goods = _lists(torch.stack((chosen, finite.long())))
        logprobs = asked.read()
        drawn: list[Drawn] = []
        broken: list[str] = []
        for row, (state, token, good) in enumerate(zip(states, tokens, goods, strict=True)):
            if not good:
                broken.append(state.request)
                continue
            state.accept(token)
            logprob, top = logprobs.get(row, (None, ()))
            drawn.append(Drawn(request=state.request, token=token, logprob=logprob, top=top))
        return PassResult(drawn=tuple(drawn), broken=tuple(broken))


def _choose(logits: Tensor, states: Sequence[DrawState]) -> Tensor:
    """int64 [rows]; of a broken row any token."""
    if any(state.seen is not None for state in states):
        logits = _penalised(logits, states)
    if all(state.greedy for state in states):
        return logits.argmax(dim=1)
    widths = [_width(state, logits.shape[1]) for state in states]
    narrow = [row for row, width in enumerate(widths) if width <= NARROW]
    wide = [row for row, width in enumerate(widths) if width > NARROW]
    if not (narrow and wide):
        return _sample(logits, states, widths)
    tokens = torch.empty(len(states), dtype=torch.int64, device=logits.device)
    for kind in (narrow, wide):
        places = to_device(kind, torch.int64, logits.device)
        tokens[places] = _sample(logits[places], [states[row] for row in kind], [widths[row] for row in kind])
    return tokens


def _penalised(logits: Tensor, states: Sequence[DrawState]) -> Tensor:
    pairs = zip(logits, states, strict=True)
    return torch.stack([row if state.seen is None else state.seen.penalise(row) for row, state in pairs])


def _width(state: DrawState, vocab_size: int) -> int:
    """Tokens to draw from; temperature 0 is top_k 1."""
    return 1 if state.greedy else min(state.sampling.top_k or vocab_size, vocab_size)


def _sample(logits: Tensor, states: Sequence[DrawState], widths: Sequence[int]) -> Tensor:
    """Inverse-CDF sampling over the `widths` likeliest tokens of each row.

    Sums are of whole numbers, so that neither a wider row beside this one nor the device changes them.
    """
    values, ids = ops.largest(logits, max(widths))
    temperature, top_p, min_p, chance, width = _columns(states, widths, logits.device)
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


def _columns(states: Sequence[DrawState], widths: Sequence[int], device: torch.device) -> Sequence[Tensor]:
    """Temperature, top_p, min_p, the uniform number and the width of each row, float64 [rows, 1] each."""
    samplings = [state.sampling for state in states]
    numbers = [sampling.temperature or 1.0 for sampling in samplings]
    numbers += [sampling.top_p for sampling in samplings]
    numbers += [sampling.min_p for sampling in samplings]
    numbers += [uniform(state.seed, state.position) for state in states]
    numbers += widths
    return to_device(numbers, torch.float64, device).view(5, len(states), 1).unbind()


class _Logprobs:
    """For each row that asked: the token's log probability, and the likeliest tokens with theirs."""

    def __init__(self, logits: Tensor, states: Sequence[DrawState], tokens: Tensor) -> None:
        self._counts: dict[int, int] = {}
        self._values: list[Tensor] = []
        self._ids: list[Tensor] = []
        for row, state in enumerate(states):
            if state.sampling.logprobs is None:
                continue
            count = min(state.sampling.logprobs, logits.shape[1])
            exact = logits[row].double()
            exact = exact - exact.logsumexp(dim=0)
            # the token itself is the first
            ids = tokens[row : row + 1]
            if count:
                ids = torch.cat((ids, ops.largest(logits[row : row + 1], count)[1][0]))
            self._counts[row] = count
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

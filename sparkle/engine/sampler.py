"""From logits to tokens, all rows of a pass at once. A row's token never depends on the other rows.

Order: penalties, temperature, top_k, top_p (of the mass top_k left), min_p (of the likeliest), then the one
uniform number of (seed, position) picks from what is left. Log probabilities are of the model's own
distribution: before penalties, temperature and truncation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.uniform import uniform

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


class Sampler:
    """Draws for a model with `vocab_size` tokens; logits beyond them are padding that is never drawn."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def draw(self, logits: Tensor, states: Sequence[DrawState]) -> PassResult:
        """One token a row of `logits`, float32 [len(states), padded vocab], and each state moved on by it."""
        logits = logits[:, : self._vocab_size]
        # one bad number makes the row's sum bad
        good = _ints(logits.sum(dim=1).isfinite().nonzero()[:, 0])
        broken: tuple[str, ...] = ()
        if len(good) < len(states):
            broken = tuple(state.request for row, state in enumerate(states) if row not in good)
            logits, states = logits[good], [states[row] for row in good]
        tokens = _choose(logits, states)
        logprobs = _logprobs(logits, states, tokens)
        drawn: list[Drawn] = []
        for row, (state, token) in enumerate(zip(states, tokens, strict=True)):
            state.accept(token)
            logprob, top = logprobs.get(row, (None, ()))
            drawn.append(Drawn(request=state.request, token=token, logprob=logprob, top=top))
        return PassResult(drawn=tuple(drawn), broken=broken)


def _choose(logits: Tensor, states: Sequence[DrawState]) -> list[int]:
    if any(state.seen is not None for state in states):
        rows = zip(logits, states, strict=True)
        logits = torch.stack([row if state.seen is None else state.seen.penalise(row) for row, state in rows])
    if all(state.greedy for state in states):
        return _ints(logits.argmax(dim=1))
    return _sample(logits, states)


def _sample(logits: Tensor, states: Sequence[DrawState]) -> list[int]:
    """Inverse-CDF sampling over the likeliest tokens of each row; temperature 0 is top_k 1.

    Sums run in float64 and always from the likeliest token on, so that a wider row beside this one adds
    nothing but zeros behind it.
    """
    vocab_size = logits.shape[1]
    samplings = [state.sampling for state in states]
    widths = [1 if s.temperature == 0.0 else min(s.top_k or vocab_size, vocab_size) for s in samplings]
    values, ids = _largest(logits, max(widths))
    temperature = _column([s.temperature or 1.0 for s in samplings])
    scores = values.double()
    # the largest is taken off first: what overflows at a tiny temperature is then only ever -inf
    weights = ((scores - scores[:, :1]) / temperature).exp()
    weights = weights * (torch.arange(max(widths)) < torch.tensor(widths)[:, None])
    cumulative = weights.cumsum(dim=1)
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    kept = before < _column([s.top_p for s in samplings]) * cumulative[:, -1:]
    kept &= weights >= _column([s.min_p for s in samplings])
    last = kept.sum(dim=1, keepdim=True) - 1
    targets = _column([uniform(s.seed, s.position) for s in states]) * cumulative.gather(1, last)
    picks = torch.minimum((cumulative <= targets).sum(dim=1, keepdim=True), last)
    return _ints(ids.gather(1, picks)[:, 0])


def _largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids [rows, count] of the largest logits, largest first, equal ones by id: a total order."""
    vocab_size = logits.shape[1]
    # + 0.0 makes -0.0 and 0.0 one value; the xor makes the bits of negative floats rise with their value
    bits = (logits.float() + 0.0).view(torch.int32)
    rising = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()
    keys = (rising << 32) + torch.arange(vocab_size - 1, -1, -1)
    ids = vocab_size - 1 - (keys.topk(count, dim=1).values & 0xFFFFFFFF)
    return logits.gather(1, ids), ids


def _logprobs(logits: Tensor, states: Sequence[DrawState], tokens: Sequence[int]) -> dict[int, Logprobs]:
    """For each row that asked: the token's log probability, and the likeliest tokens with theirs."""
    found: dict[int, Logprobs] = {}
    for row, state in enumerate(states):
        count = state.sampling.logprobs
        if count is None:
            continue
        exact = logits[row].double()
        exact = exact - exact.logsumexp(dim=0)
        ids = _largest(logits[row : row + 1], min(count, logits.shape[1]))[1][0]
        top = tuple(zip(_ints(ids), _floats(exact[ids]), strict=True))
        found[row] = exact[tokens[row]].item(), top
    return found


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def _ints(values: Tensor) -> list[int]:
    return cast("list[int]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists


def _floats(values: Tensor) -> list[float]:
    return cast("list[float]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists

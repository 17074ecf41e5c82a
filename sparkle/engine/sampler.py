"""From logits to tokens, all rows of a pass at once. A row's token never depends on the other rows.

Order: penalties, the mask of a shape, temperature, top_k, top_p (of the mass top_k left), min_p (of the
likeliest), then the one uniform number of (seed, position) picks from what is left. Log probabilities are of
the model's own distribution: before penalties, mask, temperature and truncation. Everything happens on the
logits' device, which is waited for once, when the tokens are read.

A draft is checked by drawing: each of its rows draws the token that would be drawn there without a draft, and
the first that differs is the last that counts. So a draft changes how many tokens a pass writes, never which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.drawn_rows import NARROW, columns_of, width_of
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.shape_masks import RowMasks, ShapeMasks
from sparkle.engine.transfer import to_device
from sparkle.kernels import ops

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of logits: which request's, and how many tokens of its draft stand in front of it."""

    state: DrawState
    ahead: int


class Sampler:
    """Draws for a model with `vocab_size` tokens; logits beyond them are padding that is never drawn."""

    def __init__(self, vocab_size: int, shape_masks: ShapeMasks | None = None) -> None:
        """`shape_masks`: needed where any state has a shape."""
        self.vocab_size = vocab_size
        self._shape_masks = shape_masks

    def masks(
        self, states: Sequence[DrawState], drafts: Sequence[Sequence[int]] | None = None
    ) -> RowMasks | None:
        """What `draw` of the same states and drafts needs of their shapes, None for nothing.

        Made beforehand, the device computes the logits meanwhile. It is lost with the next call of either.
        """
        if self._shape_masks is None:
            assert all(state.shape is None for state in states), "there are no masks for shapes"
            return None
        return self._shape_masks.fill(states, drafts or [()] * len(states))

    def forget(self) -> None:
        """Overwrite the masks, which tell what was written."""
        if self._shape_masks is not None:
            self._shape_masks.forget()

    def draw(
        self,
        logits: Tensor,
        states: Sequence[DrawState],
        drafts: Sequence[Sequence[int]] | None = None,
        masks: RowMasks | None = None,
    ) -> PassResult:
        """The next tokens of each state, which is moved on by them; `drafts` has one for each, () for none.

        `logits`, float32 [rows, padded vocab]: of each state one row, and one behind each token of its draft.
        `masks` of `masks`, where it was asked. One token is drawn without a draft; with one, as many as agree
        with it, and the one after them; none behind a stop token.
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
        finite = ops.finite_rows(logits)
        masks = masks or self.masks(states, drafts)
        chosen = _choose(_masked(_penalised(logits, states, drafts), masks), rows)
        asked = _Logprobs(logits, rows, chosen)
        tokens, goods = _lists(torch.stack((chosen, finite.long())))
        taken = list(_taken(states, drafts, tokens, goods))
        for place, (state, own) in enumerate(zip(states, taken, strict=True)):
            if state.shape is not None and own:
                count = state.shape.settle([tokens[row] for row in own])
                if not count:
                    # its masks are others now
                    return self.draw(logits, states, drafts)
                taken[place] = own[:count]
        logprobs = asked.read()
        drawn: list[Drawn] = []
        for state, own in zip(states, taken, strict=True):
            for row in own:
                logprob, top = logprobs.get(row, (None, ()))
                drawn.append(Drawn(request=state.request, token=tokens[row], logprob=logprob, top=top))
                state.accept(tokens[row])
        broken = [state.request for state, own in zip(states, taken, strict=True) if not own]
        return PassResult(drawn=tuple(drawn), broken=tuple(broken))


def _taken(
    states: Sequence[DrawState],
    drafts: Sequence[Sequence[int]],
    tokens: Sequence[int],
    goods: Sequence[int],
) -> Iterator[range]:
    """Of each state the rows whose tokens count: none where the first one is broken."""
    first = 0
    for state, draft in zip(states, drafts, strict=True):
        stop = first
        # no guess stands behind the last row
        for row, guess in enumerate((*draft, None), start=first):
            if not goods[row]:
                break
            stop = row + 1
            if tokens[row] != guess or tokens[row] in state.stop_tokens:
                break
        yield range(first, stop)
        first += 1 + len(draft)


def _masked(logits: Tensor, masks: RowMasks | None) -> Tensor:
    if masks is None:
        return logits
    return ops.mask_logits(logits, masks.masks, masks.wait())


def _choose(logits: Tensor, rows: Sequence[_Row]) -> Tensor:
    """int64 [rows]; of a broken row any token."""
    if all(row.state.greedy for row in rows):
        return logits.argmax(dim=1)
    widths = [width_of(row.state, logits.shape[1]) for row in rows]
    # the wider ones take much longer
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


def _sample(logits: Tensor, rows: Sequence[_Row], widths: Sequence[int]) -> Tensor:
    vocab_size = logits.shape[1]
    parts = [columns_of(row.state, [row.state.chance(row.ahead)], vocab_size) for row in rows]
    numbers = [number for column in zip(*parts, strict=True) for (number,) in column]
    device_columns = to_device(numbers, torch.float64, logits.device).view(-1, len(rows)).unbind()
    return ops.draw_rows(logits, ops.RowSettings.of(device_columns), most=max(widths))


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

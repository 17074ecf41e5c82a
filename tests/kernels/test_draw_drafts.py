"""Drafts drawn and counted: the reference against a loop over the rows, the kernel against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.draw_drafts import (
    MAX_WIDTH,
    WARPS,
    draw_drafts_kernel,
    draw_drafts_reference,
)
from sparkle.kernels.draw_rows import UNIT
from sparkle.kernels.largest import KEPT
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.interpreter import Interpreter

VOCABULARY = 300
CASES = [(1, 1), (3, 4), (2, 16), (5, 7)]
"""Spans and width."""


@dataclass(frozen=True)
class Pass:
    """Random logits, spans with drafts that often agree, and rows that are drawn in all ways."""

    logits: Tensor
    settings: ops.RowSettings
    token_ids: Tensor
    starts: list[int]
    counts: list[int]
    width: int
    most: int

    @classmethod
    def random(cls, spans: int, width: int, seed: int) -> Pass:
        random, draw = Random(seed), torch.Generator().manual_seed(seed)
        # the last place may be unused
        lengths = [random.randint(1, width) for _ in range(spans - 1)] + [random.choice((0, width))]
        rows = spans * width
        logits = (4 * torch.randn(rows, VOCABULARY + 5, generator=draw))[:, :VOCABULARY]
        for row in range(rows):
            if random.random() < 0.1:
                logits[row, random.randrange(VOCABULARY)] = random.choice((torch.nan, torch.inf, -torch.inf))
        columns = torch.tensor(
            [
                (
                    random.choice((1.0, 0.3, 1e-3, 2.0)),
                    random.choice((1.0, 0.9, 0.1)),
                    random.choice((0.0, 0.05)),
                    random.random(),
                    random.choice((0.0, 1.0, 1.0, 20.0, 64.0)),
                )
                for _ in range(rows)
            ],
            dtype=torch.float64,
        )
        settings = ops.RowSettings.of(columns.t().contiguous().unbind())
        tokens = [int(token) for token in ops.draw_rows(logits, settings, most=64)]
        token_ids = [0, *(token if random.random() < 0.8 else token + 1 for token in tokens[:-1])]
        return cls(
            logits=logits,
            settings=settings,
            token_ids=torch.tensor(token_ids),
            starts=[0, *accumulate(lengths)],
            counts=[random.randint(min(length, 1), length) for length in lengths],
            width=width,
            most=64,
        )

    @property
    def firsts(self) -> list[int]:
        return [stop - count for stop, count in zip(self.starts[1:], self.counts, strict=True)]

    @property
    def drawn(self) -> list[int]:
        """The rows that are drawn from and may count."""
        finite = ops.finite_rows(self.logits)
        return [
            row
            for first, count in zip(self.firsts, self.counts, strict=True)
            for row in range(first, first + count)
            if finite[row] and self.settings.widths[row] > 0
        ]

    def draw(self) -> tuple[Tensor, Tensor]:
        return draw_drafts_reference(
            self.logits, self.settings, self.token_ids, *self._places, width=self.width, most=self.most
        )

    def expected(self, place: int, tokens: list[int]) -> int:
        """How many tokens of a span count."""
        good, stop = self.drawn, self.starts[place + 1]
        count = 0
        for row in range(self.firsts[place], stop):
            if row not in good:
                break
            count += 1
            if row + 1 < stop and tokens[row] != int(self.token_ids[row + 1]):
                break
        return count

    @property
    def _places(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.firsts), torch.tensor(self.counts)

    def kernel_arguments(self) -> tuple[object, ...]:
        values, ids = ops.largest(self.logits, self.most)
        return (values, ids, self.logits.sum(dim=1), self.settings, self.token_ids, *self._places)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """By the op, on this device."""
        given = self.settings
        columns = (given.temperatures, given.top_ps, given.min_ps, given.chances, given.widths)
        settings = ops.RowSettings.of([column[:, 0].to(device) for column in columns])
        firsts, counts = (place.to(device) for place in self._places)
        token_ids = self.token_ids.to(device)
        return ops.draw_drafts(
            self.logits.to(device), settings, token_ids, firsts, counts, width=self.width, most=self.most
        )


def assert_same(made: Pass, got: tuple[Tensor, Tensor]) -> None:
    tokens, stays = (part.cpu() for part in got)
    expected, counted = made.draw()
    assert torch.equal(stays, counted)
    assert torch.equal(tokens[made.drawn], expected[made.drawn])


@pytest.mark.parametrize(("spans", "width"), CASES, ids=str)
def test_what_counts_ends_behind_the_first_difference_and_in_front_of_a_broken_row(
    spans: int, width: int
) -> None:
    ends = set[int]()
    for seed in range(30):
        made = Pass.random(spans, width, seed)
        tokens, stays = made.draw()
        found = [int(count) for count in stays]
        assert found == [made.expected(place, [int(token) for token in tokens]) for place in range(spans)]
        ends.update(found)
    assert {0, 1} <= ends
    assert len(ends) >= min(width, 4)


@pytest.mark.parametrize(("spans", "width"), CASES, ids=str)
def test_the_kernel(interpreter: Interpreter, spans: int, width: int) -> None:
    for seed in range(8):
        made = Pass.random(spans, width, seed)
        got = interpreter.call(
            "sparkle.kernels.draw_drafts:draw_drafts_triton", *made.kernel_arguments(), width=width, pdl=False
        )
        assert_same(made, got)


@pytest.mark.parametrize("width", [1, MAX_WIDTH])
@pytest.mark.parametrize("kept", KEPT)
def test_the_kernel_compiles_without_spills(width: int, kept: int) -> None:
    floats = ("p_temperatures", "p_top_ps", "p_min_ps", "p_chances", "p_widths")
    numbers = ("p_ids", "p_token_ids", "p_firsts", "p_counts", "p_tokens", "p_stays")
    types = {**dict.fromkeys(("p_values", "p_sums"), "*fp32"), **dict.fromkeys(floats, "*fp64")}
    types |= {**dict.fromkeys(numbers, "*i64"), "most": "i32"}
    compiled = compile_for_h200(
        draw_drafts_kernel, types, {"KEPT": kept, "WIDTH": width, "UNIT": UNIT, "PDL": True}, warps=WARPS
    )
    assert compiled.stack_bytes == 0


def test_wrong_inputs_are_refused() -> None:
    made = Pass.random(2, 4, 0)
    arguments = (made.logits, made.settings, made.token_ids, torch.tensor(made.firsts))
    counts = torch.tensor(made.counts)
    with pytest.raises(ValueError, match="width is 17 but must be 1 to 16"):
        ops.draw_drafts(*arguments, counts, width=17, most=64)
    with pytest.raises(ValueError, match=r"counts is torch\.int32"):
        ops.draw_drafts(*arguments, counts.int(), width=4, most=64)
    with pytest.raises(ValueError, match=r"token_ids has shape \[8\] but must be \[7\]"):
        ops.draw_drafts(made.logits[:7], *arguments[1:], counts, width=4, most=64)


@pytest.mark.gpu
@pytest.mark.parametrize(("spans", "width"), [*CASES, (128, 1), (8, 16)], ids=str)
def test_the_kernel_on_the_gpu(gpu: torch.device, spans: int, width: int) -> None:
    for seed in range(5):
        made = Pass.random(spans, width, seed)
        got = made.on(gpu)
        assert_same(made, got)
        again = made.on(gpu)
        assert torch.equal(again[0][made.drawn], got[0][made.drawn])
        assert torch.equal(again[1], got[1])

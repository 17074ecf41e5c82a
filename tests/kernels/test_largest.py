"""The largest logits in a total order: the reference and the kernel against a stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import largest
from tests.kernels.fp8_inputs import CPU

SHAPES = [(1, 7, 1), (3, 200, 64), (2, 1000, 20), (4, 64, 3)]  # rows, vocabulary, count


def logits_with_ties(rows: int, vocabulary: int, device: torch.device = CPU) -> Tensor:
    """Rows of a wider product, rounded so that many are equal; of three rows the second has zeros of both
    signs alone, the third only -inf but for two."""
    draw = torch.Generator().manual_seed(vocabulary)
    wide = torch.randn(rows, vocabulary + 24, generator=draw).mul(8.0).round() / 8.0
    if rows >= 3:
        wide[1] = torch.where(wide[1] > 0, 0.0, -0.0)
        wide[2, :-1] = -torch.inf
        wide[2, vocabulary // 2 : vocabulary // 2 + 2] = -3.0
    return wide.to(device)[:, :vocabulary]


def assert_largest(got: tuple[Tensor, Tensor], logits: Tensor, count: int) -> None:
    values, ids = got
    # a stable sort keeps the order of equal ones
    expected, places = logits.double().sort(dim=1, descending=True, stable=True)
    assert torch.equal(ids, places[:, :count])
    assert torch.equal(values.double(), expected[:, :count])


@pytest.mark.parametrize(("rows", "vocabulary", "count"), [*SHAPES, (2, 5, 5), (1, 300, 300)], ids=str)
def test_equal_ones_come_by_id(rows: int, vocabulary: int, count: int) -> None:
    logits = logits_with_ties(rows, vocabulary)
    assert_largest(largest.largest(logits, count), logits, count)


def test_no_rows() -> None:
    values, ids = largest.largest(torch.zeros(0, 9), 2)
    assert values.shape == ids.shape == (0, 2)


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="count is 10 but must be 1 to the 9"):
        largest.largest(torch.zeros(2, 9), 10)
    with pytest.raises(ValueError, match="count is 0"):
        largest.largest(torch.zeros(2, 9), 0)
    with pytest.raises(ValueError, match=r"logits is torch\.bfloat16"):
        largest.largest(torch.zeros(2, 9, dtype=torch.bfloat16), 1)
    with pytest.raises(ValueError, match="a row must be dense"):
        largest.largest(torch.zeros(9, 2).t(), 1)

"""The largest logits in a total order: the reference and the kernel against a stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import largest
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.fp8_inputs import CPU
from tests.kernels.interpreter import Interpreter

SHAPES = [(3, 200, 5), (1, 33_000, 1)]  # rows, vocabulary, count


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


@pytest.mark.parametrize(
    ("rows", "vocabulary", "count"), [*SHAPES, (1, 7, 1), (3, 200, 64), (2, 5, 5), (1, 300, 300)], ids=str
)
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


@pytest.mark.parametrize(("rows", "vocabulary", "count"), SHAPES, ids=str)
def test_kernels(interpreter: Interpreter, rows: int, vocabulary: int, count: int) -> None:
    logits = logits_with_ties(rows, vocabulary)
    got = interpreter.call("sparkle.kernels.largest:largest_triton", logits, count, pdl=False)
    assert_largest(got, logits, count)


def test_ids_of_a_row_that_is_not_a_number_are_ids(interpreter: Interpreter) -> None:
    logits = torch.full((1, 130), torch.nan)
    logits[:, 40:].neg_()
    for call in (largest.largest_reference, largest.largest_triton):
        name = f"sparkle.kernels.largest:{call.__name__}"
        options = {"pdl": False} if call is largest.largest_triton else {}
        _, ids = interpreter.call(name, logits, 5, **options)
        assert bool(((ids >= 0) & (ids < 130)).all())


@pytest.mark.parametrize("kept", largest.KEPT)
def test_kernels_compile_without_spills(kept: int) -> None:
    keys = dict.fromkeys(("p_group_keys", "p_id_keys", "p_ids"), "*i64")
    types = {**dict.fromkeys(("p_logits", "p_values"), "*fp32"), **keys}
    types |= dict.fromkeys(("vocabulary", "stride_logits", "parts", "count"), "i32")
    ids, shares = {"IDS": largest.GROUP_IDS}, {"SHARES": largest.SHARES}
    for kernel, sizes, warps in (
        (largest.largest_groups_kernel, {"GROUPS": largest.PART_GROUPS, **ids}, largest.GROUP_WARPS),
        (largest.largest_ids_kernel, {"PARTS": largest.MAX_PARTS, **ids, **shares}, largest.MERGE_WARPS),
        (largest.largest_of_shares_kernel, shares, largest.MERGE_WARPS),
    ):
        compiled = compile_for_h200(
            kernel,
            types,
            {**sizes, "KEPT": kept, "PDL": True},
            aligned=frozenset({"vocabulary", "stride_logits"}),
            warps=warps,
        )
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
        if kernel is largest.largest_groups_kernel:
            assert "ld.global.v4" in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "vocabulary", "count"),
    [
        *SHAPES,
        (3, 200, 64),
        (0, 100, 3),
        *((rows, 248_320, count) for rows in (1, 16, 128) for count in (1, 20, 64)),
    ],
    ids=str,
)
def test_kernels_on_the_gpu(gpu: torch.device, rows: int, vocabulary: int, count: int) -> None:
    logits = logits_with_ties(rows, vocabulary, gpu)
    got = largest.largest(logits, count)
    assert_largest(got, logits, count)
    again = largest.largest(logits, count)
    assert torch.equal(again[1], got[1])


@pytest.mark.gpu
def test_more_than_the_kernels_hold_on_the_gpu(gpu: torch.device) -> None:
    for vocabulary, count in ((248_320, 65), (262_145, 5)):
        logits = logits_with_ties(3, vocabulary, gpu)
        assert_largest(largest.largest(logits, count), logits, count)

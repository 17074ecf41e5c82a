"""Masked logits: the reference token by token, and the kernel bit for bit the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import mask_logits, ops
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.fp8_inputs import CPU
from tests.kernels.interpreter import Interpreter

SHAPES = [
    (1, 1, 1),
    (3, 31, 2),
    (3, 32, 2),
    (2, 33, 1),
    (4, 4097, 3),
    (2, 8200, 5),
]  # rows, vocabulary, masks


def inputs(
    rows: int, vocabulary: int, masks: int, device: torch.device = CPU
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a wider product; the first is of the last mask, of the others some have none."""
    draw = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary + 24, generator=draw)[:, :vocabulary]
    words = -(-vocabulary // 32)
    packed = torch.randint(-(2**31), 2**31, (masks, words), generator=draw, dtype=torch.int32)
    which = torch.arange(rows) % (masks + 1) - 1
    which[0] = masks - 1
    return logits.to(device), packed.to(device), which.to(device)


def by_token(logits: Tensor, packed: Tensor, which: Tensor) -> Tensor:
    expected = logits.cpu().clone()
    for row, mask in enumerate(map(int, which)):
        words = [int(word) for word in packed[mask]]
        for token in range(logits.shape[1] if mask >= 0 else 0):
            if not words[token // 32] >> token % 32 & 1:
                expected[row, token] = -torch.inf
    return expected


@pytest.mark.parametrize(("rows", "vocabulary", "masks"), SHAPES, ids=str)
def test_only_what_is_allowed_keeps_its_logit(rows: int, vocabulary: int, masks: int) -> None:
    logits, packed, which = inputs(rows, vocabulary, masks)
    assert torch.equal(ops.mask_logits(logits, packed, which), by_token(logits, packed, which))


@pytest.mark.parametrize(("rows", "vocabulary", "masks"), [*SHAPES, (0, 40, 1)], ids=str)
def test_kernel(interpreter: Interpreter, rows: int, vocabulary: int, masks: int) -> None:
    if not rows:
        logits, packed, which = (
            torch.zeros(0, vocabulary),
            torch.zeros(1, 2, dtype=torch.int32),
            torch.zeros(0),
        )
        which = which.long()
    else:
        logits, packed, which = inputs(rows, vocabulary, masks)
    got = interpreter.call("sparkle.kernels.mask_logits:mask_logits_triton", logits, packed, which, pdl=False)
    assert torch.equal(got, mask_logits.mask_logits_reference(logits, packed, which))


def rule_out_in_interpreter(logits: Tensor, packed: Tensor, which: Tensor) -> Tensor:
    """Runs in the interpreter's process: the logits as they are then."""
    mask_logits.rule_out_triton(logits, packed, which, pdl=False)
    return logits


@pytest.mark.parametrize(("rows", "vocabulary", "masks"), SHAPES, ids=str)
def test_in_place_only_what_is_ruled_out_is_written(
    interpreter: Interpreter, rows: int, vocabulary: int, masks: int
) -> None:
    logits, packed, which = inputs(rows, vocabulary, masks)
    masked = by_token(logits, packed, which)
    expected = masked.masked_fill(masked.isinf(), mask_logits.RULED_OUT)
    by_kernel = interpreter.call(
        "tests.kernels.test_mask_logits:rule_out_in_interpreter", logits, packed, which
    )
    ops.rule_out(logits, packed, which)
    assert torch.equal(logits, expected)
    assert torch.equal(by_kernel, expected)


def test_what_is_ruled_out_is_never_drawn_and_breaks_no_row() -> None:
    logits = torch.full((1, 248_320), mask_logits.RULED_OUT)
    logits[0, 7] = -40.0
    assert bool(ops.finite_rows(logits)[0])
    columns = [torch.tensor([value], dtype=torch.float64) for value in (2.0, 1.0, 0.0, 1 - 2.0**-53, 64.0)]
    assert int(ops.draw_rows(logits, ops.RowSettings.of(columns), most=64)) == 7


def test_wrong_inputs_are_refused() -> None:
    logits, packed, which = inputs(3, 70, 2)
    for wrong, message in (
        ((logits.double(), packed, which), r"logits is torch\.float64"),
        ((torch.zeros(70, 3).t(), packed, which), "a row must be dense"),
        ((logits, packed.long(), which), r"masks is torch\.int64"),
        ((logits, packed[:, :2], which), "masks has strides"),
        ((logits, packed[:, :2].contiguous(), which), "masks has 64 bits a row but logits has 70 columns"),
        ((logits, packed, which[:2]), "rows has shape"),
        ((logits, packed, which.int()), r"rows is torch\.int32"),
    ):
        for op in (ops.mask_logits, ops.rule_out):
            with pytest.raises(ValueError, match=message):
                op(*wrong)


def test_kernel_compiles_without_spills_and_loads_four_logits_at_once() -> None:
    pointers = {"p_logits": "*fp32", "p_masks": "*i32", "p_rows": "*i64", "p_out": "*fp32"}
    numbers = dict.fromkeys(("vocabulary", "stride_logits", "stride_out", "words"), "i32")
    compiled = compile_for_h200(
        mask_logits.mask_logits_kernel,
        {**pointers, **numbers},
        {"WORDS": mask_logits.WORDS_PER_PROGRAM, "BITS": mask_logits.WORD_BITS, "PDL": True},
        aligned=frozenset({"stride_logits", "stride_out"}),
        warps=mask_logits.WARPS,
    )
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
    assert "st.global.v4" in compiled.ptx


def test_kernel_in_place_compiles_without_spills() -> None:
    pointers = {"p_logits": "*fp32", "p_masks": "*i32", "p_rows": "*i64"}
    numbers = dict.fromkeys(("vocabulary", "stride_logits", "words"), "i32")
    compiled = compile_for_h200(
        mask_logits.rule_out_kernel,
        {**pointers, **numbers},
        {
            "RULED_OUT": mask_logits.RULED_OUT,
            "WORDS": mask_logits.WORDS_PER_PROGRAM,
            "BITS": mask_logits.WORD_BITS,
            "PDL": True,
        },
        aligned=frozenset({"stride_logits"}),
        warps=mask_logits.WARPS,
    )
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "vocabulary", "masks"), [*SHAPES, (128, 248_077, 129), (1, 248_320, 2)], ids=str
)
def test_kernel_on_the_gpu(gpu: torch.device, rows: int, vocabulary: int, masks: int) -> None:
    logits, packed, which = inputs(rows, vocabulary, masks, gpu)
    got = ops.mask_logits(logits, packed, which)
    assert torch.equal(got, mask_logits.mask_logits_reference(logits, packed, which))
    expected = got.masked_fill(got.isinf(), mask_logits.RULED_OUT)
    ops.rule_out(logits, packed, which)
    assert torch.equal(logits, expected)

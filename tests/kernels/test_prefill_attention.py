"""Attention of a prompt's chunk: the reference against float64, cuDNN on the GPU."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from sparkle.kernels import prefill_attention
from sparkle.kernels.prefill_parts import Part
from sparkle.kernels.tolerance_relative import relative_error, relative_mismatch
from tests.kernels.interpreter import Interpreter
from tests.kernels.paged_inputs import PagedCase, exact_attention, paged_inputs

SCALE = 0.3
CASES = [
    PagedCase(contexts=(0,), spans=(1,)),
    PagedCase(contexts=(0,), spans=(65,), page_tokens=16),
    PagedCase(contexts=(63,), spans=(2,)),
    PagedCase(contexts=(64,), spans=(33,), cache=torch.bfloat16),
]
REAL_CASES = [
    PagedCase.of_27b((0,), (1024,)),
    PagedCase.of_27b((1000,), (129,)),
    PagedCase.of_27b((65,), (64,), page_tokens=16, cache=torch.bfloat16),
    # few rows and keys, where cuDNN alone would take none
    PagedCase.of_27b((0,), (1,)),
    PagedCase.of_27b((1000,), (1,)),
    PagedCase.of_27b((1,), (70,)),
    PagedCase.of_27b((1,), (1,)),
    # four calls
    PagedCase.of_27b((7900,), (600,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_the_formula(case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=1)
    query, keys, values, tables, *_ = inputs.attended
    got = prefill_attention.prefill_attention(
        query, keys, values, tables[0], context=case.contexts[0], scale=SCALE
    )
    assert relative_error(got, exact_attention(inputs, scale=SCALE, gated=False)) < 2.0**-8


def plain_part(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Part:
    """What cuDNN's call gives."""
    group = q.shape[1] // k.shape[1]
    query, key, value = (part[0].float() for part in (q, k, v))
    scores = scale * query @ key.repeat_interleave(group, dim=0).transpose(1, 2)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    out = scores.softmax(-1) @ value.repeat_interleave(group, dim=0)
    return out.to(q.dtype), scores.logsumexp(-1)


def attend_in_calls(*inputs: Tensor, context: int) -> Tensor:
    """As on a GPU, but for cuDNN; runs in the interpreter's process."""
    with patch.object(prefill_attention, "_attend", plain_part):
        return prefill_attention.prefill_attention_cudnn(*inputs, context=context, scale=SCALE)


@pytest.mark.parametrize(("context", "rows"), [(0, 3), (1023, 2), (1024, 1), (1600, 5), (3600, 257)])
def test_the_calls_join_to_the_whole(interpreter: Interpreter, context: int, rows: int) -> None:
    inputs = paged_inputs(PagedCase(contexts=(context,), spans=(rows,)), seed=4)
    query, keys, values, tables, *_ = inputs.attended
    got = interpreter.call(f"{__name__}:attend_in_calls", query, keys, values, tables[0], context=context)
    assert got.shape == query.shape
    assert relative_error(got, exact_attention(inputs, scale=SCALE, gated=False)) < 2.0**-8


def test_wrong_inputs_are_refused() -> None:
    inputs = paged_inputs(CASES[2], seed=1)
    query, keys, values, tables, *_ = inputs.attended
    with pytest.raises(
        ValueError, match=r"context is 1000 and query has 2 rows but the pages hold 192 tokens"
    ):
        prefill_attention.prefill_attention(query, keys, values, tables[0], context=1000, scale=1.0)
    with pytest.raises(ValueError, match=r"page_table has shape \[1, 3\]"):
        prefill_attention.prefill_attention(query, keys, values, tables, context=63, scale=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL_CASES, ids=str)
def test_cudnn_on_the_gpu(gpu: torch.device, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=3).on(gpu)
    query, keys, values, tables, *_ = inputs.attended
    context = case.contexts[0]
    got = prefill_attention.prefill_attention(query, keys, values, tables[0], context=context, scale=SCALE)
    known = prefill_attention.prefill_attention_reference(
        query, keys, values, tables[0], context=context, scale=SCALE
    )
    exact = exact_attention(inputs, scale=SCALE, gated=False)
    mismatch = relative_mismatch("prefill_attention", got, known, exact)
    assert mismatch is None, mismatch
    again = prefill_attention.prefill_attention(query, keys, values, tables[0], context=context, scale=SCALE)
    assert torch.equal(again, got)

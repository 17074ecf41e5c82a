"""Attention of a prompt's chunk: the reference against float64, cuDNN on the GPU."""

from __future__ import annotations

import pytest
import torch

from sparkle.kernels import prefill_attention
from sparkle.kernels.tolerance_relative import relative_error, relative_mismatch
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
    # cuDNN takes no single key: of the chunk, of the context, of both
    PagedCase.of_27b((0,), (1,)),
    PagedCase.of_27b((1000,), (1,)),
    PagedCase.of_27b((1,), (70,)),
    PagedCase.of_27b((1,), (1,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_the_formula(case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=1)
    query, keys, values, tables, *_ = inputs.attended
    got = prefill_attention.prefill_attention(
        query, keys, values, tables[0], context=case.contexts[0], scale=SCALE
    )
    assert relative_error(got, exact_attention(inputs, scale=SCALE, gated=False)) < 2.0**-8


def test_one_key_gives_its_value_and_its_score() -> None:
    """Joined with the other keys' part it must give what attention over all of them gives."""
    q, k, v = torch.randn(1, 6, 5, 32), torch.randn(1, 2, 4, 32), torch.randn(1, 2, 4, 32)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=SCALE, enable_gqa=True)[0]
    first, score = prefill_attention.one_key(q, k[:, :, :1], v[:, :, :1], scale=SCALE)
    wide = k[0, :, 1:].repeat_interleave(3, dim=0)
    scores = SCALE * q[0] @ wide.transpose(1, 2)
    rest = scores.softmax(dim=-1) @ v[0, :, 1:].repeat_interleave(3, dim=0)
    weight = (score - scores.logsumexp(dim=-1)).sigmoid()[..., None]
    assert relative_error(first * weight + rest * (1 - weight), whole.double()) < 1e-6


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

"""The output product: greedy choice and logits, against the reference; equal logits and padding included."""

from __future__ import annotations

import re

import pytest
import torch

from sparkle.kernels import lm_head
from sparkle.kernels.quantise import Fp8Blocks
from sparkle.kernels.tolerance_relative import relative_error
from sparkle.kernels.tuning import LinearSettings, block_rows, linear_settings
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_blocks, exact_rows
from tests.kernels.fp8_inputs import CPU, random_blocks, random_rows
from tests.kernels.interpreter import Interpreter
from tests.kernels.proxy_order import unordered_products

SMALL = LinearSettings(block_columns=64, split=1, stages=2, warps=4, fetch=0)


def head_with_equal_rows(device: torch.device = CPU) -> Fp8Blocks:
    """A head of 200 rows in which every row stands twice, 100 apart, and the padding past 190 is largest."""
    half = random_blocks(100, 256, seed=2, device=device)
    values = half.values.view(torch.uint8).repeat(2, 1).view(torch.float8_e4m3fn)
    values[190:] = 448.0
    return Fp8Blocks(values, half.scales.repeat(2, 1))


def test_of_equal_logits_the_lowest_token_is_taken_and_padding_never() -> None:
    x, w = random_rows(5, 256, seed=1), head_with_equal_rows()
    tokens, logits = lm_head.lm_head_greedy(x, w, vocabulary=190)
    truth = exact_rows(x) @ exact_blocks(w).t()[:, :190]
    best = truth.amax(dim=1)
    assert relative_error(logits, best) < 1e-6
    for row in range(5):
        assert tokens[row] == int((truth[row] >= best[row]).nonzero()[0])
    assert relative_error(lm_head.lm_head_logits(x, w, vocabulary=190), truth) < 1e-6


def test_a_vocabulary_larger_than_the_head_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary is 201 but w has 200 rows"):
        lm_head.lm_head_greedy(random_rows(1, 256, seed=1), random_blocks(200, 256, seed=2), vocabulary=201)


@pytest.mark.parametrize("rows", [1, 5, 17])
def test_greedy_kernel(interpreter: Interpreter, rows: int) -> None:
    x, w = random_rows(rows, 256, seed=1), head_with_equal_rows()
    tokens, logits = interpreter.call(
        "sparkle.kernels.lm_head:lm_head_greedy_triton", x, w, vocabulary=190, settings=SMALL, pdl=False
    )
    reference_tokens, reference_logits = lm_head.lm_head_greedy_reference(x, w, vocabulary=190)
    assert torch.equal(tokens, reference_tokens)
    truth = (exact_rows(x) @ exact_blocks(w).t()[:, :190]).amax(dim=1)
    assert_close("fp8_linear", logits, reference_logits, truth)


@pytest.mark.parametrize("rows", [16, 64, 200])
def test_greedy_kernel_compiles_to_tensor_core_code(rows: int) -> None:
    chosen, width = linear_settings(248320, 5120, rows=rows), block_rows(rows)
    compiled = compile_for_h200(
        lm_head.largest_of_tile_kernel,
        {
            "p_x": "*fp8e4nv",
            "p_xs": "*fp32",
            "p_w": "*fp8e4nv",
            "p_ws": "*fp32",
            "p_logits": "*fp32",
            "p_tokens": "*i32",
            "rows": "i32",
            "vocabulary": "i32",
            "depth": "i32",
            "tiles": "i32",
        },
        {"BN": chosen.block_columns, "BM": width, "FETCH": chosen.fetch, "PDL": True},
        aligned=frozenset({"depth"}),
        warps=chosen.warps,
        stages=chosen.stages,
    )
    assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+k32)\.", compiled.ptx)) == {f"m64n{width}k32"}
    assert unordered_products(compiled.ptx) == 0
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 16, 33, 128, 200])
def test_head_on_the_gpu(gpu: torch.device, rows: int) -> None:
    vocabulary = 24_001
    x = random_rows(rows, 5120, seed=1, device=gpu)
    w = random_blocks(24_064, 5120, seed=2, device=gpu)
    logits = lm_head.lm_head_logits(x, w, vocabulary=vocabulary)
    truth = exact_rows(x) @ exact_blocks(w).t()[:, :vocabulary]
    reference = (exact_rows(x).float() @ exact_blocks(w).float().t())[:, :vocabulary]
    assert_close("fp8_linear", logits, reference, truth)
    tokens, best = lm_head.lm_head_greedy(x, w, vocabulary=vocabulary)
    again, best_again = lm_head.lm_head_greedy(x, w, vocabulary=vocabulary)
    assert torch.equal(tokens, again)
    assert_same_bits(best_again, best)
    assert_close("fp8_linear", best, reference.amax(dim=1), truth.amax(dim=1))
    # the token that was taken has that logit, to the product's own error
    taken = truth.gather(1, tokens[:, None])[:, 0]
    assert_close("fp8_linear", best, reference.amax(dim=1), taken)


@pytest.mark.gpu
def test_equal_logits_on_the_gpu(gpu: torch.device) -> None:
    x, w = random_rows(5, 256, seed=1, device=gpu), head_with_equal_rows(gpu)
    tokens, _ = lm_head.lm_head_greedy(x, w, vocabulary=190)
    assert torch.equal(tokens, lm_head.lm_head_greedy_reference(x, w, vocabulary=190)[0])

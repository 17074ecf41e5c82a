"""The sampler on a GPU: the same tokens as on the CPU, and one wait for the device."""

from __future__ import annotations

import warnings

import pytest
import torch

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassResult
from sparkle.engine.sampler import Sampler
from sparkle.schemas.job import Sampling

pytestmark = pytest.mark.gpu

VOCAB = 248_077
PADDED = 248_320
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_k=64, min_p=0.01),
    Sampling(temperature=0.0, repetition_penalty=1.5, presence_penalty=0.5),
    Sampling(temperature=1.5, top_k=3, frequency_penalty=1.0),
)
WIDE = (Sampling(temperature=2.0, top_k=0, top_p=1.0), Sampling(top_k=100), Sampling(top_k=0, top_p=0.5))


def draw(logits: torch.Tensor, samplings: tuple[Sampling, ...]) -> PassResult:
    states = [
        DrawState(str(row), one, 7 * row, [1, 2, 3], VOCAB, logits.device)
        for row, one in enumerate(samplings)
    ]
    for state in states:
        state.accept(5)
        state.accept(5)
    return Sampler(VOCAB).draw(logits, states)


def random_logits(rows: int) -> torch.Tensor:
    logits = torch.randn(rows, PADDED, generator=torch.Generator().manual_seed(3)) * 4
    logits[:, VOCAB:] = 1000.0
    return logits


@pytest.mark.parametrize(
    "samplings", [SAMPLINGS * 13, WIDE, (*SAMPLINGS, *WIDE)], ids=["few", "many", "both"]
)
def test_the_tokens_are_those_of_the_cpu(gpu: torch.device, samplings: tuple[Sampling, ...]) -> None:
    logits = random_logits(len(samplings))
    on_gpu = draw(logits.to(gpu), samplings)
    assert on_gpu == draw(logits, samplings)
    assert on_gpu == draw(logits.to(gpu), samplings)


def test_log_probabilities_are_those_of_the_cpu(gpu: torch.device) -> None:
    samplings = (Sampling(logprobs=5), Sampling(temperature=0.0, logprobs=0), Sampling(top_k=0, logprobs=20))
    logits = random_logits(3)
    for here, there in zip(draw(logits.to(gpu), samplings).drawn, draw(logits, samplings).drawn, strict=True):
        assert (here.token, [token for token, _ in here.top]) == (
            there.token,
            [token for token, _ in there.top],
        )
        assert here.logprob == pytest.approx(there.logprob, abs=1e-9)
        assert [value for _, value in here.top] == pytest.approx([value for _, value in there.top], abs=1e-9)


def test_a_broken_row_is_named(gpu: torch.device) -> None:
    logits = random_logits(3)
    logits[1] = float("nan")
    result = draw(logits.to(gpu), SAMPLINGS[:1] * 3)
    assert result.broken == ("1",)
    assert [drawn.request for drawn in result.drawn] == ["0", "2"]


@pytest.mark.parametrize("samplings", [SAMPLINGS, (*SAMPLINGS, *WIDE)], ids=["few", "both"])
def test_the_device_is_waited_for_once(gpu: torch.device, samplings: tuple[Sampling, ...]) -> None:
    logits = random_logits(len(samplings)).to(gpu)
    draw(logits, samplings)
    states = [DrawState(str(row), one, row, [1], VOCAB, gpu) for row, one in enumerate(samplings)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            Sampler(VOCAB).draw(logits, states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([one for one in waits if "synchron" in str(one.message)]) == 1

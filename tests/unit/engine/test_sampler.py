"""The sampler against a plain numpy reference, against expected frequencies, and row against row."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.engine.draw_state import DrawState
from sparkle.engine.drawn_rows import NARROW
from sparkle.engine.plan import Drawn
from sparkle.engine.sampler import Sampler
from sparkle.engine.uniform import stream_of, uniform
from sparkle.schemas.job import Sampling

VOCAB = 40
PADDED = 48

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.01, 0.6, 1.0, 2.0]),
    top_p=st.sampled_from([0.01, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 20, 1024]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 1.5]),
    logprobs=st.sampled_from([None, 0, 3, 20]),
)
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
ANSWERS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Several threads on shared cores wait for each other."""
    torch.set_num_threads(1)


def random_logits(rows: int, seed: int, *, steps: float = 0.0) -> torch.Tensor:
    """Logits whose padding would always win; rounded to `steps` they have many ties."""
    logits = torch.randn(rows, PADDED, generator=torch.Generator().manual_seed(seed)) * 3
    if steps:
        logits = (logits / steps).round() * steps
    logits[:, VOCAB:] = 1000.0
    return logits


def state_of(
    sampling: Sampling, *, seed: int = 1, prompt: list[int] | None = None, answer: list[int] | None = None
) -> DrawState:
    state = DrawState("a", sampling, seed, prompt or [0], VOCAB)
    for token in answer or []:
        state.accept(token)
    return state


def draw(logits: torch.Tensor, *states: DrawState) -> list[Drawn]:
    return list(Sampler(VOCAB).draw(logits, states).drawn)


def reference_distribution(
    logits: npt.NDArray[np.float32], sampling: Sampling, prompt: list[int], answer: list[int]
) -> npt.NDArray[np.float64]:
    """Probability of each token, one step after the other as the contract words them."""
    logits = logits[:VOCAB].copy()
    for token in {*prompt, *answer}:
        penalty = np.float32(sampling.repetition_penalty)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(answer).items():
        logits[token] -= np.float32(np.float32(sampling.frequency_penalty) * count)
        logits[token] -= np.float32(sampling.presence_penalty)
    # likeliest first, equal ones by id
    order = sorted(range(VOCAB), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0.0:
        kept, probabilities = order[:1], np.ones(1)
    else:
        scaled = logits[order].astype(np.float64) / sampling.temperature
        kept = order[: sampling.top_k or VOCAB]
        weights = np.exp(scaled - scaled[0])[: len(kept)]
        probabilities = weights / weights.sum()
        before = np.concatenate([[0.0], np.cumsum(probabilities)[:-1]])
        keep = (before < sampling.top_p) & (probabilities >= sampling.min_p * probabilities[0])
        kept = [token for place, token in enumerate(kept) if keep[place]]
        probabilities = probabilities[keep] / probabilities[keep].sum()
    result = np.zeros(VOCAB)
    result[kept] = probabilities
    return result


def reference_token(
    logits: npt.NDArray[np.float32], sampling: Sampling, seed: int, prompt: list[int], answer: list[int]
) -> int:
    """The token that one uniform number picks, likeliest tokens first."""
    probabilities = reference_distribution(logits, sampling, prompt, answer)
    order = sorted(
        (token for token in range(VOCAB) if probabilities[token] > 0), key=lambda t: -probabilities[t]
    )
    cumulative = np.cumsum(probabilities[order])
    place = int((cumulative <= uniform(stream_of(seed), len(answer)) * cumulative[-1]).sum())
    return order[place]


@settings(max_examples=300, deadline=None)
@given(
    sampling=SAMPLINGS,
    seed=st.integers(0, 2**63 - 1),
    prompt=PROMPTS,
    answer=ANSWERS,
    steps=st.sampled_from([0, 1]),
)
def test_all_parameters_together_match_the_reference(
    sampling: Sampling, seed: int, prompt: list[int], answer: list[int], steps: float
) -> None:
    logits = random_logits(1, seed % 1000, steps=steps)
    found = draw(logits, state_of(sampling, seed=seed, prompt=prompt, answer=answer))[0]
    assert found.token == reference_token(logits[0].numpy(), sampling, seed, prompt, answer)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=0, top_p=1.0),
        Sampling(temperature=0.7, top_k=6, top_p=1.0),
        Sampling(temperature=1.5, top_k=0, top_p=0.8),
        Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.2),
        Sampling(temperature=1.2, top_k=12, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies_follow_the_distribution(sampling: Sampling) -> None:
    draws = 20_000
    logits = random_logits(1, 3)
    expected = reference_distribution(logits[0].numpy(), sampling, [0], []) * draws
    states = [state_of(sampling, seed=seed) for seed in range(draws)]
    tokens = [found.token for found in draw(logits.expand(draws, -1), *states)]
    counts = np.bincount(np.array(tokens), minlength=VOCAB)
    assert not counts[expected == 0].any()
    # bins of fewer than five are too few for a chi-square
    rare = (expected > 0) & (expected < 5)
    counts = np.append(counts[expected >= 5], counts[rare].sum())
    expected = np.append(expected[expected >= 5], expected[rare].sum() + 1e-9)
    chi_square = float(((counts - expected) ** 2 / expected)[expected > 1].sum())
    freedom = int((expected > 1).sum()) - 1
    # mean + 4 standard deviations of a chi-square; the seeds are fixed
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@settings(max_examples=60, deadline=None)
@given(samplings=st.lists(SAMPLINGS, min_size=2, max_size=8), seed=st.integers(0, 1000))
def test_a_row_does_not_depend_on_the_other_rows(samplings: list[Sampling], seed: int) -> None:
    logits = random_logits(len(samplings), seed)
    answer = [1, 2, 1]
    together = draw(logits, *(state_of(one, seed=seed, answer=answer) for one in samplings))
    for row, sampling in enumerate(samplings):
        assert draw(logits[row : row + 1], state_of(sampling, seed=seed, answer=answer)) == [together[row]]


def test_rows_that_draw_from_many_tokens_and_from_few_do_not_meet() -> None:
    """More tokens than the narrow rows ever keep, so that a pass has both kinds."""
    vocab = 3 * NARROW
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(2)) * 2
    samplings = [
        Sampling(temperature=2.0, top_k=0, top_p=1.0, seed=1),
        Sampling(seed=2, logprobs=2),
        Sampling(temperature=0.0),
        Sampling(top_k=NARROW + 1, temperature=1.5, top_p=1.0, logprobs=1),
        Sampling(top_k=NARROW, temperature=1.5, presence_penalty=1.0),
        Sampling(temperature=2.0, top_k=1024, top_p=0.9, min_p=0.01),
    ]
    states = [DrawState(str(row), one, row, [0], vocab) for row, one in enumerate(samplings)]
    together = Sampler(vocab).draw(logits, states).drawn
    assert [found.request for found in together] == list("012345")
    for row, sampling in enumerate(samplings):
        alone = DrawState(str(row), sampling, row, [0], vocab)
        assert Sampler(vocab).draw(logits[row : row + 1], [alone]).drawn == together[row : row + 1]
    assert together[2].token == int(logits[2].argmax())


def test_seed_and_position_alone_decide() -> None:
    sampling = Sampling(temperature=2.0, top_k=0, top_p=1.0)
    logits = random_logits(1, 5)
    tokens = {
        (seed, position): draw(logits, state_of(sampling, seed=seed, answer=[0] * position))[0].token
        for seed in range(5)
        for position in range(5)
    }
    assert len(set(tokens.values())) > 5
    for (seed, position), token in tokens.items():
        assert draw(logits, state_of(sampling, seed=seed, answer=[9] * position))[0].token == token


@given(
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        top_p=st.floats(0, 1, exclude_min=True),
        top_k=st.integers(0, 1024),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0, 2, exclude_min=True) | st.sampled_from([5e-324, 1e-40, 1e-37]),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        seed=st.none() | st.integers(0, 2**63 - 1),
        logprobs=st.none() | st.integers(0, 20),
    ),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
    prompt=PROMPTS,
    answer=ANSWERS,
)
def test_whatever_the_contract_allows_draws_a_token(
    sampling: Sampling, scale: float, prompt: list[int], answer: list[int]
) -> None:
    state = state_of(sampling, seed=sampling.seed or 0, prompt=prompt, answer=answer)
    (drawn,) = Sampler(VOCAB).draw(random_logits(1, seed=5) * scale, [state]).drawn
    assert 0 <= drawn.token < VOCAB


def test_each_draw_moves_the_state_on() -> None:
    state = state_of(Sampling(frequency_penalty=2.0, temperature=0.0))
    logits = torch.zeros(1, PADDED)
    logits[0, 4], logits[0, 7] = 3.0, 2.5
    assert [draw(logits, state)[0].token for _ in range(4)] == [4, 7, 4, 7]
    assert state.position == 4


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.0, logprobs=0)])
def test_equal_logits_take_the_lower_id(sampling: Sampling) -> None:
    logits = torch.full((1, PADDED), -1.0)
    logits[0, [30, 11, 20]] = 2.0
    assert draw(logits, state_of(sampling))[0].token == 11
    mixed = draw(logits.expand(2, -1), state_of(sampling), state_of(Sampling(top_k=1)))
    assert [found.token for found in mixed] == [11, 11]


def test_zero_and_minus_zero_are_equal() -> None:
    logits = torch.full((1, PADDED), -1.0)
    logits[0, 5], logits[0, 6] = -0.0, 0.0
    assert draw(logits, state_of(Sampling(top_k=1)))[0].token == 5


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0, logprobs=3), Sampling(seed=1, logprobs=3)])
def test_log_probabilities_are_the_models_own(sampling: Sampling) -> None:
    """Before penalties, temperature and truncation, and without the padding."""
    penalised = sampling.model_copy(update={"repetition_penalty": 2.0, "presence_penalty": 2.0})
    logits = random_logits(1, 8)
    exact = logits[0, :VOCAB].double().numpy()
    exact = exact - np.log(np.exp(exact).sum())
    found = draw(logits, state_of(penalised, answer=[3, 4]))[0]
    assert found.logprob == pytest.approx(exact[found.token], abs=1e-12)
    likeliest = np.argsort(-exact)[:3]
    assert [token for token, _ in found.top] == likeliest.tolist()
    assert [value for _, value in found.top] == pytest.approx(exact[likeliest].tolist(), abs=1e-12)


def test_no_log_probabilities_unless_asked() -> None:
    found = draw(random_logits(2, 8), state_of(Sampling()), state_of(Sampling(logprobs=0)))
    assert (found[0].logprob, found[0].top, found[1].top) == (None, (), ())
    assert found[1].logprob is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling()])
def test_a_row_that_is_not_finite_is_named_and_the_others_go_on(bad: float, sampling: Sampling) -> None:
    logits = random_logits(3, 9)
    clean = draw(logits[[0, 2]], *(DrawState(name, sampling, 1, [0], VOCAB) for name in "ac"))
    logits[1, 3] = bad
    result = Sampler(VOCAB).draw(logits, [DrawState(name, sampling, 1, [0], VOCAB) for name in "abc"])
    assert result.broken == ("b",)
    assert list(result.drawn) == clean


def test_bad_numbers_in_the_padding_do_not_matter() -> None:
    logits = random_logits(1, 9)
    logits[0, VOCAB:] = float("nan")
    assert Sampler(VOCAB).draw(logits, [state_of(Sampling())]).broken == ()


def test_no_rows() -> None:
    assert Sampler(VOCAB).draw(torch.zeros(0, PADDED), []).drawn == ()


def test_what_a_request_has_seen_is_overwritten_at_its_end() -> None:
    sampling = Sampling(repetition_penalty=1.5, frequency_penalty=0.5)
    state = DrawState("a", sampling, 1, [3, 5], 9)
    state.accept(7)
    assert state.seen is not None
    tensors = [value for value in vars(state.seen).values() if isinstance(value, torch.Tensor)]
    assert [int(tensor.count_nonzero()) for tensor in tensors] == [2, 1]
    state.wipe()
    assert not any(tensor.any() for tensor in tensors)
    # one without penalties has seen nothing
    DrawState("b", Sampling(), 1, [3], 9).wipe()

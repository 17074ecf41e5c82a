"""Drafts in the sampler: the tokens of one call are those of one call a token, whatever was guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import Drawn
from sparkle.engine.sampler import Sampler
from sparkle.schemas.job import Sampling

VOCAB = 12
PADDED = 16
TOKENS = st.integers(0, VOCAB - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.5]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Several threads on shared cores wait for each other."""
    torch.set_num_threads(1)


def random_logits(rows: int, seed: int) -> Tensor:
    logits = torch.randn(rows, PADDED, generator=torch.Generator().manual_seed(seed)) * 2
    logits[:, VOCAB:] = 1000.0
    return logits


def state_of(name: int, sampling: Sampling, answer: Sequence[int] = ()) -> DrawState:
    state = DrawState(str(name), sampling, 7 + name, [1, 2, 3], VOCAB)
    for token in answer:
        state.accept(token)
    return state


def one_by_one(logits: Tensor, state: DrawState, draft: Sequence[int]) -> list[Drawn]:
    """A call a row, until a token differs from the guess of it."""
    found: list[Drawn] = []
    for place in range(len(logits)):
        found += Sampler(VOCAB).draw(logits[place : place + 1], [state]).drawn
        if place < len(draft) and found[-1].token != draft[place]:
            break
    return found


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(
        st.tuples(SAMPLINGS, st.lists(TOKENS, max_size=6), st.integers(0, 15), st.lists(TOKENS, max_size=15)),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_a_call_with_drafts_draws_what_calls_without_them_draw(
    requests: list[tuple[Sampling, list[int], int, list[int]]], seed: int
) -> None:
    states, drafts, rows, expected = list[DrawState](), list[list[int]](), list[Tensor](), list[Drawn]()
    after: list[DrawState] = []
    for name, (sampling, answer, agreed, guesses) in enumerate(requests):
        # the guesses agree with what will be drawn as far as `agreed`, then by chance
        logits = random_logits(1 + len(guesses), seed * 5 + name)
        right = one_by_one(logits, state_of(name, sampling, answer), [])
        draft = [token.token for token in right[: min(agreed, len(guesses))]]
        draft += guesses[len(draft) :]
        alone = state_of(name, sampling, answer)
        expected += one_by_one(logits, alone, draft)
        after.append(alone)
        states.append(state_of(name, sampling, answer))
        drafts.append(draft)
        rows.append(logits)
    result = Sampler(VOCAB).draw(torch.cat(rows), states, drafts)
    assert list(result.drawn) == expected
    # each state is where it would be without a draft
    assert [state.position for state in states] == [state.position for state in after]
    probe = random_logits(len(states), seed + 1)
    assert Sampler(VOCAB).draw(probe, states) == Sampler(VOCAB).draw(probe, after)


def test_a_row_that_is_not_finite_ends_a_draft_and_breaks_only_where_it_is_the_first() -> None:
    logits = torch.full((3, PADDED), -1.0)
    for row, token in enumerate((4, 5, 6)):
        logits[row, token] = 2.0
    logits[1, 0] = float("nan")
    state = state_of(0, Sampling(temperature=0.0))
    result = Sampler(VOCAB).draw(logits, [state], [[4, 5]])
    assert ([drawn.token for drawn in result.drawn], result.broken, state.position) == ([4], (), 1)
    # behind a wrong guess it is not met
    result = Sampler(VOCAB).draw(logits, [state_of(0, Sampling(temperature=0.0))], [[9, 5]])
    assert ([drawn.token for drawn in result.drawn], result.broken) == ([4], ())
    state = state_of(0, Sampling(temperature=0.0))
    result = Sampler(VOCAB).draw(logits[1:], [state], [[5]])
    assert (result.drawn, result.broken, state.position) == ((), ("0",), 0)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_frequencies_of_checked_drafts_follow_the_distribution(temperature: float) -> None:
    """Chi-square over 200,000 draws; half of the guesses are the likeliest token, half are not."""
    sampling = Sampling(temperature=temperature, top_k=8, top_p=0.95)
    # flat enough that at the lowest temperature there is something to choose
    logits = random_logits(2, 3) / 4
    scaled = logits[:, :VOCAB].double().numpy() / temperature
    counts = [Counter[int](), Counter[int]()]
    order = np.argsort(-scaled[0])
    start, at_once = 0, 2_000
    while counts[0].total() + counts[1].total() < 200_000:
        states = [DrawState("a", sampling, seed, [1], VOCAB) for seed in range(start, start + at_once)]
        drafts = [[int(order[seed % 2])] for seed in range(at_once)]
        drawn = iter(Sampler(VOCAB).draw(logits.repeat(at_once, 1), states, drafts).drawn)
        for state, draft in zip(states, drafts, strict=True):
            first = next(drawn).token
            counts[0][first] += 1
            if state.position == 2:
                assert first == draft[0]
                counts[1][next(drawn).token] += 1
        assert next(drawn, None) is None
        start += at_once
    for row, count in zip(scaled, counts, strict=True):
        kept = np.argsort(-row)[:8]
        mass = np.exp(row[kept] - row.max())
        mass /= mass.sum()
        kept = kept[np.cumsum(mass) - mass < 0.95]
        assert len(kept) > 2
        expected = mass[: len(kept)] / mass[: len(kept)].sum() * count.total()
        assert set(count) <= {int(token) for token in kept}
        found = np.array([count[int(token)] for token in kept])
        # 7 degrees of freedom at most: 24.3 is passed once in a thousand times
        assert ((found - expected) ** 2 / expected).sum() < 24.3

"""Shapes in the sampler: nothing else is drawn, drafts change nothing, and what is allowed keeps its odds."""

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
from sparkle.engine.shape_masks import ShapeMasks
from sparkle.engine.shaped_answer import ShapedAnswer
from sparkle.schemas.job import Sampling
from sparkle.text.endings import Endings
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer, reference_encoder
from tests.shapes import of_lark, of_schema, small_vocabulary
from tests.text.small_tokenizer import small_tokenizer

TOKENIZER = Tokenizer(small_tokenizer(), reference_encoder(small_tokenizer()))
VOCAB = TOKENIZER.vocab_size
ROWS = VOCAB + 10
ENDS = (TOKENIZER.added_tokens["<|im_end|>"], TOKENIZER.added_tokens["<|endoftext|>"])
THINK = TOKENIZER.added_tokens["</think>"]
LEAD = tuple(TOKENIZER.encode("\n\n"))
TOKENS = small_vocabulary(ROWS, ENDS)
ENDINGS = Endings(TOKENIZER, rows=ROWS)
GRAMMARS = {
    "words": of_lark('start: WORD ("," WORD)*\nWORD: /[a-c]{1,3}/', TOKENS),
    "schema": of_schema({"type": "array", "items": {"enum": ["ab", 1, None]}, "maxItems": 3}, TOKENS),
    "a tag": of_lark("start: /[ab]*/ <tool_call> /end/", TOKENS),
}
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.5]),
    top_p=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    logprobs=st.sampled_from([None, 3]),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Several threads on shared cores wait for each other."""
    torch.set_num_threads(1)


def sampler() -> Sampler:
    masks = ShapeMasks(rows=ROWS, end_tokens=ENDS, most_masks=3000, threads=1, device=torch.device("cpu"))
    return Sampler(VOCAB, masks)


SAMPLER = sampler()


def random_logits(rows: int, seed: int) -> Tensor:
    logits = torch.randn(rows, ROWS, generator=torch.Generator().manual_seed(seed)) * 2
    logits[:, VOCAB:] = 1000.0
    # thinking is to end now and then
    logits[:, THINK] += 6.0
    return logits


def state_of(
    name: int, sampling: Sampling, shape: Shape | None, *, thinks: bool = False, max_tokens: int | None = None
) -> DrawState:
    answer = None
    if shape is not None:
        given_shape = Shape(
            compiled=shape.compiled,
            begins_after=THINK if thinks else None,
            lead_in=LEAD if thinks else (),
            complete=max_tokens is not None,
        )
        answer = ShapedAnswer(
            given_shape, rows=ROWS, end_tokens=ENDS, max_tokens=max_tokens or 500, find_ending=ENDINGS.find
        )
    stops = frozenset(ENDS)
    return DrawState(str(name), sampling, 7 + name, [1, 2, 3], VOCAB, stop_tokens=stops, shape=answer)


def accept(state: DrawState, drawn: Sequence[Drawn]) -> None:
    """What the engine does after a pass."""
    if state.shape is not None:
        state.shape.accept([one.token for one in drawn])


def one_by_one(logits: Tensor, state: DrawState, draft: Sequence[int]) -> list[Drawn]:
    """A call a row, until a token differs from the guess of it or ends."""
    found: list[Drawn] = []
    for place in range(len(logits)):
        drawn = SAMPLER.draw(logits[place : place + 1], [state]).drawn
        accept(state, drawn)
        found += drawn
        if found[-1].token in ENDS or (place < len(draft) and found[-1].token != draft[place]):
            break
    return found


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            SAMPLINGS,
            st.sampled_from([None, *sorted(GRAMMARS)]),
            st.booleans(),
            st.integers(0, 15),
            st.lists(st.integers(0, VOCAB - 1), max_size=15),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_a_call_with_drafts_draws_what_calls_without_them_draw_each_under_its_mask(
    requests: list[tuple[Sampling, str | None, bool, int, list[int]]], seed: int
) -> None:
    states, drafts, rows, expected = list[DrawState](), list[list[int]](), list[Tensor](), list[Drawn]()
    for name, (sampling, grammar, thinks, agreed, guesses) in enumerate(requests):
        shape = None if grammar is None else GRAMMARS[grammar]
        logits = random_logits(1 + len(guesses), seed * 5 + name)
        # the guesses agree with what will be drawn as far as `agreed`, then by chance
        right = one_by_one(logits, state_of(name, sampling, shape, thinks=thinks), [])
        draft = [one.token for one in right[: min(agreed, len(guesses))]]
        draft += guesses[len(draft) :]
        expected += one_by_one(logits, state_of(name, sampling, shape, thinks=thinks), draft)
        states.append(state_of(name, sampling, shape, thinks=thinks))
        drafts.append(draft)
        rows.append(logits)
    result = SAMPLER.draw(torch.cat(rows), states, drafts)
    assert list(result.drawn) == expected
    drawn = result.by_request
    for state in states:
        # raises for a token that its mask left out
        accept(state, drawn[state.request])


def test_log_probabilities_are_those_before_the_mask() -> None:
    logits = random_logits(1, 3)
    state = state_of(0, Sampling(temperature=0.0, logprobs=2), GRAMMARS["words"])
    (drawn,) = SAMPLER.draw(logits, [state]).drawn
    exact = logits[0, :VOCAB].double().log_softmax(dim=0)
    assert drawn.logprob == pytest.approx(float(exact[drawn.token]))
    assert [token for token, _ in drawn.top] == [int(token) for token in exact.topk(2).indices]
    assert drawn.token not in [token for token, _ in drawn.top]


@pytest.mark.parametrize(
    ("penalty", "second"),
    [
        (Sampling(repetition_penalty=2.0), "c"),
        (Sampling(presence_penalty=2.0), "c"),
        (Sampling(frequency_penalty=2.0), "c"),
        (Sampling(frequency_penalty=0.25), "b"),
        (Sampling(), "b"),
    ],
)
def test_penalties_come_before_the_mask_and_log_probabilities_before_both(
    penalty: Sampling, second: str
) -> None:
    a, b, c, refused = (TOKENIZER.encode(letter)[0] for letter in "abcx")
    logits = torch.full((3, ROWS), -9.0)
    for token, logit in ((refused, 8.0), (b, 2.0), (c, 1.5), (a, -1.0)):
        logits[:, token] = logit
    sampling = penalty.model_copy(update={"temperature": 0.0, "logprobs": 2})
    state = state_of(0, sampling, of_lark("start: /[a-c]{4}/", TOKENS))
    exact = logits[0, :VOCAB].double().log_softmax(dim=0)
    # a row behind a guess that is right is penalised for it
    draft = [b, TOKENIZER.encode(second)[0]]
    drawn = SAMPLER.draw(logits, [state], [draft]).drawn
    assert [one.token for one in drawn[:2]] == draft
    for one in drawn:
        # what no answer may have is the likeliest token all the same
        likeliest, logprob = one.top[0]
        assert likeliest == refused
        assert logprob == pytest.approx(float(exact[refused]))
        assert one.logprob == pytest.approx(float(exact[one.token]))


def test_an_ending_that_is_due_is_drawn_in_place_of_what_has_no_room() -> None:
    opening = TOKENIZER.encode("[")[0]
    nested = of_schema({"type": "array", "items": {"$ref": "#"}}, TOKENS)
    logits = torch.zeros(1, ROWS)
    logits[0, opening] = 50.0
    state = state_of(0, Sampling(temperature=1.0, logprobs=0), nested, max_tokens=10)
    tokens = list[int]()
    assert state.shape is not None
    while not state.shape.ended:
        (drawn,) = SAMPLER.draw(logits, [state]).drawn
        accept(state, [drawn])
        tokens.append(drawn.token)
        # also of what was given
        exact = logits[0, :VOCAB].double().log_softmax(dim=0)
        assert drawn.logprob == pytest.approx(float(exact[drawn.token]))
    text = b"".join(map(TOKENIZER.token_bytes, tokens))
    assert (text, len(tokens), tokens[-1]) == (b"[[[[]]]]", 9, ENDS[0])


def test_frequencies_of_checked_drafts_follow_the_distribution_of_what_is_allowed() -> None:
    """Chi-square over 30,000 draws; a third of the guesses each: the likeliest token allowed, another
    one, and one that is not."""
    shape = of_lark("start: /[a-h]/ /[k-r]/ /x/", TOKENS)
    temperature = 0.7
    sampling = Sampling(temperature=temperature, top_k=6, top_p=0.95)
    # flat enough that at the lowest temperature there is something to choose
    logits = random_logits(2, 3) / 4
    spelled = [[TOKENIZER.encode(letter)[0] for letter in letters] for letters in ("abcdefgh", "klmnopqr")]
    allowed = [np.array(tokens) for tokens in spelled]
    scaled = [logits[row].double().numpy()[allowed[row]] / temperature for row in range(2)]
    order = allowed[0][np.argsort(-scaled[0])]
    guesses = [int(order[0]), int(order[1]), TOKENIZER.encode("z")[0]]
    counts = [Counter[int](), Counter[int]()]
    start, at_once = 0, 1_000
    while start < 30_000:
        states = [DrawState("a", sampling, seed, [1], VOCAB) for seed in range(start, start + at_once)]
        for state in states:
            state.shape = state_of(0, sampling, shape).shape
        drafts = [[guesses[seed % 3]] for seed in range(at_once)]
        drawn = iter(SAMPLER.draw(logits.repeat(at_once, 1), states, drafts).drawn)
        for state, draft in zip(states, drafts, strict=True):
            first = next(drawn).token
            counts[0][first] += 1
            if state.position == 2:
                assert first == draft[0]
                counts[1][next(drawn).token] += 1
        assert next(drawn, None) is None
        start += at_once
    assert counts[1].total() > 4_000
    for tokens, row, count in zip(allowed, scaled, counts, strict=True):
        places = np.argsort(-row)[:6]
        mass = np.exp(row[places] - row.max())
        mass /= mass.sum()
        places = places[np.cumsum(mass) - mass < 0.95]
        assert len(places) > 2
        expected = mass[: len(places)] / mass[: len(places)].sum() * count.total()
        assert set(count) <= {int(token) for token in tokens[places]}
        found = np.array([count[int(token)] for token in tokens[places]])
        # 5 degrees of freedom at most: 20.5 is passed once in a thousand times
        assert ((found - expected) ** 2 / expected).sum() < 20.5

"""A hit changes nothing of an answer: the same tokens, and log probabilities, as of one that reads it all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from sparkle.drafting.proposer import Proposer
from sparkle.engine.engine import FORGET_AFTER_S
from sparkle.engine.settings import EngineSettings
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer, Bundle, bundle
from tests.engine.proposers import lookup
from tests.engine.small_model import small_decoder

SETTINGS = EngineSettings(
    slots=3, pass_tokens=96, page_tokens=16, kv_tokens=2048, threads=1, cached_slots=6, draft_tokens=0
)
COLD = dataclasses.replace(SETTINGS, cache_s=0.0)
BOUNDARIES = [size + more for size in (16, 64, 128) for more in (-1, 0, 1)]


def job(
    prompt: Sequence[int], *, most: int = 6, conversation: str | None = None, tenant: str | None = None
) -> Job:
    return Job(
        prompt_tokens=list(prompt),
        max_tokens=most,
        sampling=Sampling(temperature=0.7, seed=5, logprobs=3),
        conversation=conversation,
        tenant=tenant,
    )


def tokens(length: int, seed: int = 0) -> list[int]:
    return [30 + (place * 7 + place * place * (seed + 3)) % 400 for place in range(length)]


def logprobs(answer: Answer) -> list[list[float]]:
    entries = [entry for delta in answer.deltas for entry in delta.logprobs or []]
    return [[entry[0], *(other[1] for other in entry[-1])] for entry in entries]


class Pair:
    """An engine with a cache and one that reads everything."""

    def __init__(self, tokenizer: Tokenizer, settings: EngineSettings = SETTINGS) -> None:
        self._tokenizer = tokenizer
        self.warm = self._engine(settings)
        self._cold = dataclasses.replace(settings, cache_s=0.0)

    def ask(self, *jobs: Job) -> list[Answer]:
        """All at once; answers are those of an engine that has never seen anything."""
        answers = self.warm.run(*jobs)
        for one, answer in zip(jobs, answers, strict=True):
            (expected,) = self._engine(self._cold).run(one)
            assert answer.tokens == expected.tokens
            for found, wanted in zip(logprobs(answer), logprobs(expected), strict=True):
                assert found == pytest.approx(wanted, abs=2e-4)
        return answers

    def _engine(self, settings: EngineSettings) -> Bundle:
        proposer: Proposer | None = None
        if settings.draft_tokens:
            proposer = lookup({}, self._tokenizer.vocab_size)
        return bundle(small_decoder(self._tokenizer), self._tokenizer, settings, proposer)


def cached(answers: Sequence[Answer]) -> list[int]:
    return [answer.finished.cached_tokens for answer in answers]


@pytest.mark.parametrize("draft_tokens", [0, 7])
@pytest.mark.parametrize("length", BOUNDARIES)
def test_a_follow_up_goes_on_as_if_all_had_been_read(
    tokenizer: Tokenizer, length: int, draft_tokens: int
) -> None:
    pair = Pair(tokenizer, dataclasses.replace(SETTINGS, draft_tokens=draft_tokens))
    (first,) = pair.ask(job(tokens(length)))
    on = [*tokens(length), *first.tokens]
    # two of them at once, of which one has nothing new but its last token
    answers = pair.ask(job([*on, 40, 41, 42]), job(on))
    assert cached([first]) == [0]
    assert cached(answers) == [length + 5, length + 5]


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("place", [16, 64, 128])
def test_another_ending_goes_on_from_the_last_block_in_common(
    tokenizer: Tokenizer, place: int, more: int
) -> None:
    pair = Pair(tokenizer)
    common = tokens(place + more)
    pair.ask(job([*common, 40]))
    # the second finds what it has in common, the third need not read it
    pair.ask(job([*common, 50, 51]))
    blocks = (place + more) // 16
    (third,) = pair.ask(job([*common, 60]))
    assert cached([third]) == [16 * blocks if blocks > 1 else 0]


def test_followers_while_the_first_still_writes(tokenizer: Tokenizer) -> None:
    pair = Pair(tokenizer)
    long = tokens(150)
    first = job(long, most=20)
    pair.warm.submit(first)
    while not pair.warm.answers.get(first.id):
        pair.warm.step()
    answers = pair.ask(job([*long[:144], 50]), job(long))
    assert cached(answers) == [128, 128]
    (expected,) = Pair(tokenizer).ask(job(long, most=20))
    assert pair.warm.answers[first.id].tokens == expected.tokens


def test_a_checkpoint_that_left_and_was_taken_again(tokenizer: Tokenizer) -> None:
    pair = Pair(tokenizer, dataclasses.replace(SETTINGS, slots=1, cached_slots=1, kv_tokens=256))
    long = tokens(140)
    pair.ask(job(long))
    # all of the memory
    pair.ask(job(tokens(200, seed=1), most=56))
    assert cached(pair.ask(job(long))) == [0]
    assert cached(pair.ask(job(long))) == [128]


def test_a_cancelled_prompt_is_read_on(tokenizer: Tokenizer) -> None:
    pair = Pair(tokenizer)
    long = tokens(200)
    first = job(long)
    pair.warm.submit(first)
    pair.warm.step()
    pair.warm.engine.cancel(first.id)
    assert cached(pair.ask(job(long))) == [96]


def test_what_is_kept_is_zeroed_when_its_time_is_over_though_nothing_comes(tokenizer: Tokenizer) -> None:
    now_s = 100.0
    built = bundle(small_decoder(tokenizer), tokenizer, SETTINGS, clock=lambda: now_s)
    assert built.engine.idle_s() == math.inf
    built.run(job(tokens(150)))
    # what its passes left goes first, and nothing of what is kept with it
    assert built.engine.idle_s() == FORGET_AFTER_S
    now_s += FORGET_AFTER_S
    assert built.engine.step() == []
    assert built.engine.idle_s() == SETTINGS.cache_s - FORGET_AFTER_S
    now_s += 200.0
    # that begins its time anew
    built.run(job(tokens(150)))
    now_s += FORGET_AFTER_S
    assert built.engine.step() == []
    now_s += SETTINGS.cache_s - FORGET_AFTER_S - 1.0
    assert built.engine.idle_s() == 1.0
    assert built.engine.step() == []
    assert bool(built.cache.keys.any())
    now_s += 1.0
    assert built.engine.idle_s() == 0.0
    assert built.engine.step() == []
    cache = built.cache
    assert not any(bool(part.any()) for part in (cache.keys, cache.values, cache.states, cache.columns))
    assert built.engine.idle_s() == math.inf


def test_a_conversation_that_ended_leaves_zeros(tokenizer: Tokenizer) -> None:
    pair = Pair(tokenizer)
    pair.ask(job(tokens(150), conversation="x"))
    cache = pair.warm.cache
    everything = (cache.keys, cache.values, cache.states, cache.columns)
    assert all(bool(part.any()) for part in everything)
    assert not pair.warm.engine.has_work
    pair.warm.engine.end_conversation(None, "x")
    assert pair.warm.engine.has_work
    assert pair.warm.engine.step() == []
    assert not any(bool(part.any()) for part in everything)
    assert not pair.warm.engine.has_work


class Work(list[tuple[int, ...]]):
    """Of each pass the tokens of its spans: what a pass takes follows from them."""

    def __init__(self, engine: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        plan = engine.scheduler.schedule

        def noted(*given: object, **more: object) -> object:
            made = plan(*given, **more)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            self.append(tuple(len(span.tokens) for span in made.spans))
            return made

        monkeypatch.setattr(engine.scheduler, "schedule", noted)


def test_what_one_tenant_has_sent_shortens_no_wait_of_another(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(200)
    used, fresh = (bundle(small_decoder(tokenizer), tokenizer, SETTINGS) for _ in range(2))
    used.run(job(prompt, tenant="a"))
    warm, cold = Work(used, monkeypatch), Work(fresh, monkeypatch)
    (of_a_used_engine,) = used.run(job(prompt, tenant="b"))
    (of_a_fresh_engine,) = fresh.run(job(prompt, tenant="b"))
    assert of_a_used_engine.finished.cached_tokens == 0
    assert of_a_used_engine.tokens == of_a_fresh_engine.tokens
    # no pass more or less, and none larger or smaller
    assert warm == cold
    assert sum(map(sum, cold)) > 200
    # its own tenant's next one has less to read, or this would show nothing
    warm.clear()
    used.run(job(prompt, tenant="a"))
    assert sum(map(sum, warm)) < 200

"""Jobs put to an engine: whose tokens are whose, when they came, and that a failure is told."""

from __future__ import annotations

import pytest

from bench.serve_load import Answered, Asked, EngineServer, Prompts, job_of, take
from sparkle.engine.frames import Delta, Failed, Finished
from sparkle.engine.settings import default_model
from sparkle.errors import FailureCode
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Bundle, bundle
from tests.engine.scripted_model import ScriptedModel, writes
from tests.engine.small_model import config_for

WORDS = "one two three four five"


def scripted(prompt_tokens: int) -> tuple[Bundle, list[int]]:
    tokenizer = Tokenizer.load(default_model())
    answer = tokenizer.encode(WORDS)
    script = writes(answer, prompt_tokens=prompt_tokens)
    return bundle(ScriptedModel(config_for(tokenizer).vocab_size, script), tokenizer), answer


def test_answers_come_in_the_loads_order_and_count_from_their_jobs_arrival() -> None:
    built, answer = scripted(prompt_tokens=6)
    prompts = Prompts(500, seed=2)
    late = Asked(at_s=0.05, job=prompts.job(6, 3))
    early = Asked(at_s=0.0, job=prompts.job(6, 2))
    found = EngineServer(built.engine).answer([late, early])
    assert [one.tokens for one in found] == [answer[:3], answer[:2]]
    for one in found:
        assert one.times_s == sorted(one.times_s)
        # a time counted from the load's start would be later than the whole load took
        assert 0 < one.first_s <= one.last_s < 60
    assert not built.engine.has_work


def test_times_are_since_the_job_came() -> None:
    answers = {"a": Answered(), "b": Answered()}
    came_s = {"a": 0.5, "b": 2.0}
    for name, tokens, now_s in (("a", [7], 1.0), ("b", [8, 9], 2.5), ("a", [5, 6], 3.0)):
        delta = Delta(job=name, first_index=0, tokens=tokens, text="", text_start=0, channel=Channel.ANSWER)
        take(answers, delta, now_s, came_s)
    finished = Finished(
        job="a", finish_reason=FinishReason.STOP, prompt_tokens=9, cached_tokens=4, completion_tokens=3
    )
    take(answers, finished, 3.0, came_s)
    assert answers["a"] == Answered(tokens=[7, 5, 6], times_s=[0.5, 2.5, 2.5], cached_tokens=4)
    assert answers["b"] == Answered(tokens=[8, 9], times_s=[0.5, 0.5])


def test_a_refused_job_ends_the_measurement() -> None:
    built, _ = scripted(prompt_tokens=6)
    with pytest.raises(RuntimeError, match="failed: too_long: the prompt has 256 tokens"):
        EngineServer(built.engine).answer([Asked(at_s=0.0, job=job_of(list(range(256)), 2))])


def test_a_job_that_fails_ends_the_measurement() -> None:
    failed = Failed(job="a", code=FailureCode.ENGINE_ERROR, message="why", retryable=False)
    with pytest.raises(RuntimeError, match="job a failed: engine_error: why"):
        take({"a": Answered()}, failed, 1.0, {"a": 0.0})


def test_prompts_are_new_each_time_and_the_same_for_a_seed() -> None:
    first, second = (Prompts(50, seed=3) for _ in range(2))
    tokens = [first.tokens(40), first.tokens(40)]
    assert tokens == [second.tokens(40), second.tokens(40)]
    assert tokens[0] != tokens[1]
    assert all(0 <= token < 50 for token in tokens[0])

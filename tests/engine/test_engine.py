"""The engine around a scripted model: how answers end, what is refused, what a cancel and a fault do."""

from __future__ import annotations

import logging

import pytest
from torch import Tensor

from sparkle.engine.engine import seed_of
from sparkle.engine.frames import Accepted, Failed
from sparkle.engine.settings import default_model
from sparkle.errors import FailureCode
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import PassBatch
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.ids import job_id_from
from sparkle.schemas.job import Job, Sampling, Thinking, Turn
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, SETTINGS, Bundle, bundle
from tests.engine.scripted_model import Script, ScriptedModel, writes
from tests.engine.small_model import config_for, id_of

PROMPT = [10, 11, 12, 13, 14]
CONTEXT = 256


def scripted(tokenizer: Tokenizer, script: Script) -> Bundle:
    return bundle(ScriptedModel(config_for(tokenizer).vocab_size, script), tokenizer)


def saying(tokenizer: Tokenizer, text: str, *after: int) -> Bundle:
    """An engine that answers a prompt of PROMPT's length with `text`, then the tokens `after`."""
    answer = [*tokenizer.encode(text), *after]
    return scripted(tokenizer, writes(answer, prompt_tokens=len(PROMPT)))


def job(max_tokens: int = 50, **sampling: object) -> Job:
    settings = Sampling.model_validate({"temperature": 0.0, **sampling})
    return Job(prompt_tokens=PROMPT, max_tokens=max_tokens, sampling=settings)


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_both_end_tokens_end_the_answer_and_are_no_text(tokenizer: Tokenizer, end: str) -> None:
    text, token = "The alert is benign.", id_of(tokenizer, end)
    (answer,) = saying(tokenizer, text, token).run(job())
    assert answer.text == text
    assert answer.tokens == [*tokenizer.encode(text), token]
    assert answer.finished.finish_reason is FinishReason.STOP
    assert answer.finished.completion_tokens == len(answer.tokens)
    assert answer.finished.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_that_ignores_end_tokens_has_all_its_tokens(tokenizer: Tokenizer, end: str) -> None:
    token = id_of(tokenizer, end)
    tokens = [*tokenizer.encode("one"), token, token, *tokenizer.encode(" two three")]
    built = saying(tokenizer, "one", *tokens[len(tokenizer.encode("one")) :])
    whole, cut = job(max_tokens=len(tokens), ignore_eos=True), job(stop_tokens=[tokens[-1]], ignore_eos=True)
    for asked, reason in ((whole, FinishReason.LENGTH), (cut, FinishReason.STOP)):
        (answer,) = built.run(asked)
        assert (answer.tokens, answer.finished.finish_reason) == (tokens, reason)
    assert built.answers[whole.id].text == "one two three"


def test_a_stop_token_of_the_job_is_no_text_either(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two three")
    stop = tokens[-1]
    (answer,) = saying(tokenizer, "one two three").run(job(stop_tokens=[stop]))
    assert answer.tokens == tokens
    assert answer.text == "one two three".removesuffix(tokenizer.token_bytes(stop).decode())
    assert answer.finished.finish_reason is FinishReason.STOP


def test_a_stop_string_ends_the_text_before_it(tokenizer: Tokenizer) -> None:
    text = "verdict: benign\n\nEND of report"
    built = saying(tokenizer, text)
    (answer,) = built.run(job(stop=["\n\nEND", "never"]))
    assert answer.text == "verdict: benign"
    assert answer.finished.finish_reason is FinishReason.STOP
    # the tokens that wrote the stop string are told, and none after them
    written = b"".join(map(tokenizer.token_bytes, answer.tokens)).decode()
    assert written.startswith("verdict: benign\n\nEND")
    assert not b"".join(map(tokenizer.token_bytes, answer.tokens[:-1])).decode().endswith("END")


def test_a_stop_string_with_the_last_token_allowed_is_a_stop(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two")
    (answer,) = saying(tokenizer, "one two").run(job(max_tokens=len(tokens), stop=["two"]))
    assert answer.text == "one "
    assert answer.finished.finish_reason is FinishReason.STOP


def test_what_might_have_become_a_stop_string_is_text_at_the_end(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two")
    (answer,) = saying(tokenizer, "one two").run(job(max_tokens=len(tokens), stop=[" two three"]))
    assert answer.text == "one two"
    assert answer.finished.finish_reason is FinishReason.LENGTH
    assert answer.deltas[-1].tokens == []


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens(tokenizer: Tokenizer, max_tokens: int) -> None:
    (answer,) = saying(tokenizer, "a b c d e f g h").run(job(max_tokens=max_tokens))
    assert answer.tokens == tokenizer.encode("a b c d e f g h")[:max_tokens]
    assert answer.finished.finish_reason is FinishReason.LENGTH


def test_the_answer_ends_at_the_contexts_end(tokenizer: Tokenizer) -> None:
    (answer,) = saying(tokenizer, "go on").run(job(max_tokens=100_000))
    assert len(PROMPT) + len(answer.tokens) == CONTEXT
    assert answer.finished.finish_reason is FinishReason.LENGTH


def test_thinking_is_a_channel_of_its_own(tokenizer: Tokenizer) -> None:
    answer_tokens = [
        *tokenizer.encode("let me see"),
        id_of(tokenizer, "</think>"),
        *tokenizer.encode("\n\nyes"),
        id_of(tokenizer, "<|im_end|>"),
    ]
    built = scripted(tokenizer, writes(answer_tokens, prompt_tokens=len(PROMPT)))
    thinker = Job(
        messages=[Turn(role="user", content="?")], thinking=Thinking.LOW, sampling=GREEDY, max_tokens=50
    )
    assert isinstance(built.submit(thinker, PROMPT), Accepted)
    while built.engine.has_work:
        built.step()
    answer = built.answers[thinker.id]
    assert answer.texts == {Channel.REASONING: "let me see", Channel.ANSWER: "yes"}
    assert answer.tokens == answer_tokens


def test_a_character_of_several_tokens_comes_whole(tokenizer: Tokenizer) -> None:
    text = "ok 🦄 é"
    (answer,) = saying(tokenizer, text, id_of(tokenizer, "<|im_end|>")).run(job())
    assert len(tokenizer.encode("🦄")) > 1, "the test needs a character that one token does not write"
    assert answer.text == text
    assert all("\N{REPLACEMENT CHARACTER}" not in delta.text for delta in answer.deltas)


def test_log_probabilities_come_with_their_tokens(tokenizer: Tokenizer) -> None:
    (plain,) = saying(tokenizer, "a b").run(job(max_tokens=2))
    assert [delta.logprobs for delta in plain.deltas] == [None, None]
    (answer,) = saying(tokenizer, "a b").run(job(max_tokens=2, logprobs=2))
    for delta, token in zip(answer.deltas, answer.tokens, strict=True):
        assert delta.logprobs is not None
        ((logprob, text, octets, top),) = delta.logprobs
        assert -1.0 < logprob < 0.0
        assert (text, octets) == (delta.text, None)
        assert top[0] == [token, logprob, text, octets]
        assert len(top) == 2


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(tokenizer: Tokenizer) -> None:
    built = saying(tokenizer, "a")
    refused = built.submit(job(), [1] * CONTEXT)
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.TOO_LONG
    assert f"has {CONTEXT} tokens" in refused.message
    assert f"room for {CONTEXT}" in refused.message
    assert not refused.retryable
    assert not built.engine.has_work
    assert isinstance(built.submit(job(), [1] * (CONTEXT - 1)), Accepted)


def test_a_token_beyond_the_vocabulary_is_refused_without_naming_it(tokenizer: Tokenizer) -> None:
    refused = saying(tokenizer, "a").submit(job(), [1, 1_000_003])
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.INVALID_JOB
    assert str(tokenizer.vocab_size) in refused.message
    assert "1000003" not in refused.message


def test_an_empty_prompt_is_refused(tokenizer: Tokenizer) -> None:
    refused = saying(tokenizer, "a").engine.submit(job(), [])
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.INVALID_JOB


def test_a_cancelled_job_says_nothing_more_and_holds_nothing(tokenizer: Tokenizer) -> None:
    built = saying(tokenizer, "on and on ")
    stays, goes = job(), job()
    built.submit(stays)
    built.submit(goes)
    built.step()
    before = len(built.answers[goes.id].tokens)
    built.engine.cancel(goes.id)
    assert built.scheduler.num_running == 1
    built.engine.cancel(goes.id)
    built.engine.cancel("nobody")
    while built.engine.has_work:
        built.step()
    assert len(built.answers[goes.id].tokens) == before
    assert built.answers[goes.id].end is None
    assert len(built.answers[stays.id].tokens) == 50


def test_a_job_that_comes_again_starts_again(tokenizer: Tokenizer) -> None:
    built = saying(tokenizer, "on and on ")
    again = job(max_tokens=6)
    built.submit(again)
    built.step()
    built.step()
    built.answers.clear()
    (answer,) = built.run(again)
    assert len(answer.tokens) == 6


def test_tenants_take_turns(tokenizer: Tokenizer) -> None:
    built = saying(tokenizer, "word")
    prompt = [10] * (SETTINGS.pass_tokens or 0)
    asked = [job(max_tokens=1).evolve(tenant=tenant) for tenant in ("a", "a", "a", "b")]
    for one in asked:
        built.submit(one, prompt)
    while built.engine.has_work:
        built.step()
    names = {one.id: f"{one.tenant}{place}" for place, one in enumerate(asked)}
    assert [names[job_id] for job_id in built.answers] == ["a0", "b3", "a1", "a2"]


def test_more_jobs_than_slots_are_all_answered(tokenizer: Tokenizer) -> None:
    jobs = [job(max_tokens=length) for length in (3, 9, 1, 5, 7, 2, 30, 4, 8, 6)]
    built = saying(tokenizer, "word after word ")
    answers = built.run(*jobs)
    assert len(jobs) > (SETTINGS.slots or 0)
    assert [len(answer.tokens) for answer in answers] == [one.max_tokens for one in jobs]


class Sick(ScriptedModel):
    """Its output is not finite after the token 99."""

    def forward(self, batch: PassBatch, cache: SequenceCache) -> Tensor:
        logits = super().forward(batch, cache)
        logits[batch.token_ids[batch.logit_rows] == 99] = float("nan")
        return logits


class Faulty(Tokenizer):
    """Cannot write the token 98."""

    def token_bytes(self, token: int) -> bytes:
        if token == 98:
            raise KeyError("the secret")
        return super().token_bytes(token)


def test_output_that_is_not_finite_ends_one_job_alone(tokenizer: Tokenizer) -> None:
    good, bad = job(max_tokens=4), job()
    tokens = tokenizer.encode("a b c d")
    model = Sick(config_for(tokenizer).vocab_size, writes(tokens, prompt_tokens=len(PROMPT)))
    built = bundle(model, tokenizer)
    built.submit(bad, [*PROMPT[:-1], 99])
    (answer,) = built.run(good)
    assert answer.tokens == tokens
    failed = built.answers[bad.id].end
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.ENGINE_ERROR, True)


def test_a_fault_in_one_answers_text_ends_that_job_alone(caplog: pytest.LogCaptureFixture) -> None:
    built = scripted(Faulty.load(default_model()), lambda token, _: 98 if token == 99 else token + 1)
    good, bad = job(max_tokens=4), job()
    built.submit(bad, [*PROMPT[:-1], 99])
    with caplog.at_level(logging.ERROR):
        (answer,) = built.run(good)
    assert answer.tokens == [PROMPT[-1] + count for count in (1, 2, 3, 4)]
    failed = built.answers[bad.id].end
    assert isinstance(failed, Failed)
    assert failed.code is FailureCode.ENGINE_ERROR
    assert failed.message == "the engine failed on this answer (KeyError)"
    (record,) = [record for record in caplog.records if record.message == "answer_failed"]
    assert vars(record)["job"] == bad.id
    assert "token_bytes" in vars(record)["place"]
    assert "secret" not in str(vars(record))


def test_the_seed_is_the_jobs_own_or_its_id() -> None:
    assert seed_of(job(seed=7)) == 7
    name = job_id_from(1, 5)
    assert seed_of(Job(id=name, prompt="a")) == 5
    assert seed_of(Job(id=name, prompt="b", max_tokens=3)) == 5
    assert 0 <= seed_of(Job(prompt="a")) < 2**63

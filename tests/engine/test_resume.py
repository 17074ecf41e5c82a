"""An answer that goes on in another engine is the one it would have been, wherever it was cut."""

from __future__ import annotations

import pytest

from sparkle.engine.frames import Accepted, Failed
from sparkle.engine.settings import EngineSettings
from sparkle.errors import FailureCode
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.job import Job, Sampling, Thinking, Turn
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, Bundle, bundle
from tests.engine.draft_models import MtpBeside
from tests.engine.proposers import lookup
from tests.engine.scripted_model import ScriptedModel, writes
from tests.engine.small_model import config_for, id_of, small_decoder
from tests.engine.test_draft_models import Drafting

SETTINGS = EngineSettings(
    slots=3, pass_tokens=64, page_tokens=8, kv_tokens=2048, threads=1, cached_slots=3, draft_tokens=4
)
PROMPT = [30 + place % 7 for place in range(50)]
SAMPLED = Sampling(
    temperature=0.9, seed=3, logprobs=2, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.2
)
JOBS = [
    Job(prompt_tokens=PROMPT, max_tokens=60, sampling=SAMPLED),
    Job(prompt_tokens=PROMPT[:21], max_tokens=60, sampling=GREEDY),
]
THOUGHTS = "<think> is é tag\n\n"
ANSWER = "\n\nverdict: bénign 🙂 END of it"
CUTS = (1, 2, 17, 40, 59)


def resumed(built: Bundle, job: Job, tokens: list[int], prompt: list[int] | None = None) -> Answer:
    """What an engine tells that has never seen the job, but these tokens of its answer."""
    assert isinstance(built.submit(job, prompt, answered=tokens), Accepted)
    while built.engine.has_work:
        built.step()
    return built.answers[job.id]


@pytest.fixture(scope="module")
def whole(tokenizer: Tokenizer) -> list[Answer]:
    """The answers of one attempt, without drafts."""
    answers = bundle(small_decoder(tokenizer), tokenizer, SETTINGS).run(*JOBS)
    assert [len(answer.tokens) for answer in answers] == [60, 60]
    return answers


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("number", range(len(JOBS)))
@pytest.mark.parametrize("with_drafts", [False, True])
def test_it_goes_on_with_the_same_tokens_draws_and_penalties(
    tokenizer: Tokenizer, whole: list[Answer], number: int, cut: int, with_drafts: bool
) -> None:
    expected, job = whole[number], JOBS[number]
    proposer = lookup({}, tokenizer.vocab_size) if with_drafts else None
    built = bundle(small_decoder(tokenizer), tokenizer, SETTINGS, proposer)
    answer = resumed(built, job, expected.tokens[:cut])
    assert answer.tokens == expected.tokens
    assert answer.texts == expected.texts
    assert answer.finished.finish_reason is expected.finished.finish_reason
    # what was written before is counted once, and not read for nothing
    assert answer.finished.completion_tokens == len(expected.tokens)
    assert answer.finished.prompt_tokens == len(job.prompt_tokens or ())
    replayed = [delta for delta in answer.deltas if delta.first_index < cut]
    assert [token for delta in replayed for token in delta.tokens] == expected.tokens[:cut]
    assert all(delta.logprobs is None for delta in replayed)
    if job.sampling.logprobs is not None:
        told = [one for delta in answer.deltas for one in delta.logprobs or ()]
        drawn = [one for delta in expected.deltas for one in delta.logprobs or ()]
        assert [one[0] for one in told] == pytest.approx([one[0] for one in drawn[cut:]], abs=1e-4)


def test_it_goes_on_beside_a_draft_model(tokenizer: Tokenizer, whole: list[Answer]) -> None:
    built = Drafting(MtpBeside(tokenizer), tokenizer, SETTINGS).bundle
    for job, answer in zip(JOBS, whole, strict=True):
        found = resumed(built, job, answer.tokens[:23])
        assert found.tokens == answer.tokens
        assert found.finished.drafted_tokens > 0


def scripted(tokenizer: Tokenizer, answer: list[int]) -> Bundle:
    model = ScriptedModel(config_for(tokenizer).vocab_size, writes(answer, prompt_tokens=5))
    return bundle(model, tokenizer)


def test_an_ignored_end_token_is_gone_on_behind(tokenizer: Tokenizer) -> None:
    end = id_of(tokenizer, "<|im_end|>")
    written = [*tokenizer.encode("one"), end, *tokenizer.encode(" two"), end]
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    job = Job(prompt_tokens=[10, 11, 12, 13, 14], max_tokens=len(written), sampling=sampling)
    for cut in range(1, len(written) + 1):
        answer = resumed(scripted(tokenizer, written), job, written[:cut])
        assert (answer.tokens, answer.text) == (written, "one two")
        assert answer.finished.finish_reason is FinishReason.LENGTH


def test_thinking_half_characters_and_stop_strings_go_on_at_every_token(tokenizer: Tokenizer) -> None:
    written = [*tokenizer.encode(THOUGHTS), id_of(tokenizer, "</think>"), *tokenizer.encode(ANSWER)]
    job = Job(
        messages=[Turn(role="user", content="x")],
        thinking=Thinking.LOW,
        max_tokens=200,
        sampling=Sampling(temperature=0.0, stop=["END of", " never"]),
    )
    first = scripted(tokenizer, written)
    first.submit(job, [10, 11, 12, 13, 14])
    while first.engine.has_work:
        first.step()
    expected = first.answers[job.id]
    assert expected.texts == {Channel.REASONING: THOUGHTS, Channel.ANSWER: "verdict: bénign 🙂 "}
    for cut in range(1, len(expected.tokens) + 1):
        answer = resumed(scripted(tokenizer, written), job, expected.tokens[:cut], [10, 11, 12, 13, 14])
        assert (answer.tokens, answer.texts) == (expected.tokens, expected.texts)
        assert answer.finished.finish_reason is FinishReason.STOP
        # the text that was final behind the cut then is final there now
        known = [delta for delta in answer.deltas if delta.tokens and delta.first_index < cut]
        for channel in Channel:
            told = "".join(delta.text for delta in known if delta.channel is channel)
            before = [
                delta.text
                for delta in expected.deltas
                if delta.tokens and delta.first_index < cut and delta.channel is channel
            ]
            assert told == "".join(before)


@pytest.mark.parametrize("ends_with", ["<|im_end|>", "length"])
def test_an_answer_that_lacked_only_its_end_needs_no_pass(tokenizer: Tokenizer, ends_with: str) -> None:
    tokens = tokenizer.encode("benign")
    if ends_with != "length":
        tokens.append(id_of(tokenizer, ends_with))
    job = Job(prompt_tokens=[1, 2, 3, 4, 5], max_tokens=len(tokens), sampling=GREEDY)
    built = scripted(tokenizer, [])
    assert isinstance(built.submit(job, answered=tokens), Accepted)
    built.step()
    answer = built.answers[job.id]
    assert (answer.tokens, answer.text) == (tokens, "benign")
    reason = FinishReason.LENGTH if ends_with == "length" else FinishReason.STOP
    assert answer.finished.finish_reason is reason
    assert not built.scheduler.has_work


def test_tokens_that_do_not_exist_end_the_job(tokenizer: Tokenizer) -> None:
    vocab_size = tokenizer.vocab_size
    failed = scripted(tokenizer, []).submit(JOBS[0], answered=[vocab_size])
    assert isinstance(failed, Failed)
    assert failed.code is FailureCode.INVALID_JOB
    assert failed.message == f"answered: every id must be below {vocab_size}, the vocabulary's size"


def test_a_cancel_takes_back_what_is_not_told_yet(tokenizer: Tokenizer) -> None:
    built = scripted(tokenizer, tokenizer.encode("a b c d e f"))
    job = Job(prompt_tokens=[1, 2, 3, 4, 5], max_tokens=3, sampling=GREEDY)
    built.submit(job, answered=tokenizer.encode("a"))
    built.engine.cancel(job.id)
    assert not built.engine.has_work
    assert built.engine.step() == []

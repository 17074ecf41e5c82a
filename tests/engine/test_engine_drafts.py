"""The engine with drafts: how answers end inside one, what is counted, and each width with a real decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from sparkle.drafting.proposer import Proposer
from sparkle.engine.frames import Failed
from sparkle.engine.settings import EngineSettings, default_model
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, SETTINGS, Answer, Bundle, bundle
from tests.engine.proposers import Knowing, adversary, liar, lookup, oracle
from tests.engine.scripted_model import ScriptedModel, writes
from tests.engine.small_model import config_for, id_of, small_decoder

PROMPT = [10, 11, 12, 13, 14]
Make = Callable[[Mapping[str, Sequence[int]], int], Proposer]


def drafting(width: int, *, slots: int = 4, pass_tokens: int = 64) -> EngineSettings:
    return EngineSettings(
        slots=slots, pass_tokens=pass_tokens, page_tokens=8, kv_tokens=2048, threads=1, draft_tokens=width
    )


class Saying:
    """An engine that answers PROMPT with `text` and `after`, and a proposer that says so beforehand."""

    def __init__(self, tokenizer: Tokenizer, text: str, *after: int, width: int = 15) -> None:
        self.tokens = [*tokenizer.encode(text), *after]
        self.answers: dict[str, list[int]] = {}
        vocab_size = config_for(tokenizer).vocab_size
        self.model = ScriptedModel(vocab_size, writes(self.tokens, prompt_tokens=len(PROMPT)))
        proposer = oracle(self.answers, tokenizer.vocab_size)
        self.bundle: Bundle = bundle(self.model, tokenizer, drafting(width), proposer)

    def run(self, max_tokens: int = 50, **sampling: object) -> Answer:
        settings = Sampling.model_validate({"temperature": 0.0, **sampling})
        job = Job(prompt_tokens=PROMPT, max_tokens=max_tokens, sampling=settings)
        self.answers[job.id] = self.tokens * 3
        return self.bundle.run(job)[0]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_an_end_token_inside_a_draft_ends_the_answer_there(tokenizer: Tokenizer, end: str) -> None:
    token = id_of(tokenizer, end)
    saying = Saying(tokenizer, "The alert is benign.", token)
    answer = saying.run()
    assert (answer.text, answer.tokens) == ("The alert is benign.", saying.tokens)
    assert answer.finished.finish_reason is FinishReason.STOP
    assert answer.finished.completion_tokens == len(saying.tokens)
    # prompt, then all of the answer at once; then what stays of the draft, in front of the end
    assert [len(batch.token_ids) for batch in saying.model.batches] == [5, 16, len(saying.tokens) - 1]
    # the draft went on behind the end; the answer has all but its first token of it
    assert answer.finished.drafts == {"test": [1, 15, len(saying.tokens) - 1]}
    assert (answer.finished.drafted_tokens, answer.finished.accepted_tokens) == (15, len(saying.tokens) - 1)


def test_a_draft_goes_on_behind_an_end_token_that_is_ignored(tokenizer: Tokenizer) -> None:
    saying = Saying(tokenizer, "one", id_of(tokenizer, "<|im_end|>"), *tokenizer.encode(" two"))
    answer = saying.run(max_tokens=2 * len(saying.tokens), ignore_eos=True)
    assert (answer.text, answer.tokens) == ("one two" * 2, saying.tokens * 2)
    assert answer.finished.finish_reason is FinishReason.LENGTH
    # of one draft came all but the first token, of the prompt's pass, and the last, drawn behind the draft
    assert answer.finished.accepted_tokens == 2 * len(saying.tokens) - 2


def test_a_stop_token_of_the_job_inside_a_draft_is_no_text(tokenizer: Tokenizer) -> None:
    saying = Saying(tokenizer, "one two three")
    answer = saying.run(stop_tokens=[saying.tokens[-1]])
    assert answer.tokens == saying.tokens
    assert answer.text == "one two three".removesuffix(tokenizer.token_bytes(saying.tokens[-1]).decode())
    assert answer.finished.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("after", ["nothing", "an end token", "the greatest length"])
def test_a_stop_string_inside_a_draft_ends_the_answer_there(tokenizer: Tokenizer, after: str) -> None:
    text = "verdict: benign\n\nEND of report"
    ends = [id_of(tokenizer, "<|im_end|>")] if after == "an end token" else []
    saying = Saying(tokenizer, text, *ends)
    most = len(saying.tokens) if after == "the greatest length" else 50
    answer = saying.run(max_tokens=most, stop=["\n\nEND", "never"])
    (plain,) = bundle(saying.model, tokenizer, SETTINGS).run(
        Job(prompt_tokens=PROMPT, max_tokens=most, sampling=Sampling(temperature=0.0, stop=["\n\nEND"]))
    )
    assert answer.text == "verdict: benign"
    assert answer.tokens == plain.tokens
    assert answer.finished.finish_reason is FinishReason.STOP
    assert answer.finished.accepted_tokens == len(answer.tokens) - 1
    assert not saying.bundle.engine.has_work


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 16, 17, 18])
def test_max_tokens_inside_a_draft(tokenizer: Tokenizer, max_tokens: int) -> None:
    saying = Saying(tokenizer, "one two three four five six")
    answer = saying.run(max_tokens=max_tokens)
    assert answer.tokens == (saying.tokens * 5)[:max_tokens]
    assert answer.finished.finish_reason is FinishReason.LENGTH


def test_each_kept_token_has_its_log_probability(tokenizer: Tokenizer) -> None:
    answer = Saying(tokenizer, "a b c d").run(max_tokens=4, logprobs=2)
    # the prompt's pass writes one token, the next one all the others, in one delta
    assert [len(delta.tokens) for delta in answer.deltas if delta.tokens] == [1, 3]
    told = [entry for delta in answer.deltas for entry in delta.logprobs or ()]
    assert "".join(text for _, text, _, _ in told) == answer.text == "a b c d"
    for (logprob, text, octets, top), token in zip(told, answer.tokens, strict=True):
        assert top[0] == [token, logprob, text, octets]
        assert len(top) == 2


def test_no_drafts_where_the_setting_is_0(tokenizer: Tokenizer) -> None:
    saying = Saying(tokenizer, "one two three four", width=0)
    answer = saying.run(max_tokens=6)
    assert answer.finished.drafts == {}
    assert len(saying.model.batches) == 6


def test_a_fault_in_the_text_of_a_drafted_token_ends_that_job_alone() -> None:
    tokenizer = Faulty.load(default_model())
    model = ScriptedModel(config_for(tokenizer).vocab_size, lambda token, _: token + 1)
    good, bad = (Job(prompt_tokens=PROMPT, max_tokens=9, sampling=GREEDY) for _ in range(2))
    answers = {good.id: list(range(15, 30)), bad.id: list(range(95, 110))}
    built = bundle(model, tokenizer, drafting(6), oracle(answers, tokenizer.vocab_size))
    built.submit(bad, [90, 94])
    (answer,) = built.run(good)
    assert answer.tokens == list(range(15, 24))
    failed = built.answers[bad.id]
    assert isinstance(failed.end, Failed)
    # what passes before that of the fault wrote was told
    assert failed.tokens == [95]


class Faulty(Tokenizer):
    """Cannot write one of its tokens."""

    def token_bytes(self, token: int) -> bytes:
        if token == 98:
            raise KeyError("the secret")
        return super().token_bytes(token)


def test_a_cancel_between_drafts_frees_slot_and_pages_and_a_job_that_comes_again_starts_again(
    tokenizer: Tokenizer,
) -> None:
    jobs = small_jobs(2)
    plain = bundle(small_decoder(tokenizer), tokenizer).run(*jobs)
    answers = {job.id: answer.tokens for job, answer in zip(jobs, plain, strict=True)}
    built = bundle(
        small_decoder(tokenizer), tokenizer, drafting(5, slots=1), adversary(answers, tokenizer.vocab_size)
    )
    first, second = jobs
    built.submit(first)
    for _ in range(3):
        built.step()
    assert built.answers[first.id].tokens
    built.engine.cancel(first.id)
    assert built.run(second)[0].tokens == answers[second.id]
    del built.answers[first.id]
    assert built.run(first)[0].tokens == answers[first.id]


SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(seed=5),
    Sampling(temperature=2.0, top_k=0, top_p=1.0, seed=6),
    Sampling(
        temperature=1.2,
        min_p=0.02,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        seed=7,
    ),
)


def small_jobs(count: int) -> list[Job]:
    """Prompts with repetitions in them, of many lengths, drawn in all ways."""
    return [
        Job(
            prompt_tokens=[(31 * number + place % (5 + number)) % 5000 for place in range(3 + 11 * number)],
            max_tokens=26 - 2 * number,
            sampling=SAMPLINGS[number % 4],
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def small(tokenizer: Tokenizer) -> tuple[list[Job], dict[str, list[int]]]:
    jobs = small_jobs(8)
    answers = bundle(small_decoder(tokenizer), tokenizer, drafting(0, slots=8)).run(*jobs)
    return jobs, {job.id: answer.tokens for job, answer in zip(jobs, answers, strict=True)}


@pytest.mark.parametrize(
    ("make", "width"),
    [((adversary, liar, adversary, oracle, lookup)[width % 5], width) for width in range(1, 16)],
)
def test_a_real_decoder_writes_the_same_at_every_width(
    tokenizer: Tokenizer, small: tuple[list[Job], dict[str, list[int]]], make: Make, width: int
) -> None:
    """Greedy, sampled and penalised requests, in batches of 1 to 8, with prompts read beside them."""
    jobs, answers = small
    of = drafting(width, slots=1 + width % 8, pass_tokens=10 + 9 * width)
    built = bundle(small_decoder(tokenizer), tokenizer, of, make(answers, tokenizer.vocab_size))
    for job, answer in zip(jobs, built.run(*jobs), strict=True):
        assert answer.tokens == answers[job.id]


def test_passes_without_a_draft_come_between_passes_with_one(
    tokenizer: Tokenizer, small: tuple[list[Job], dict[str, list[int]]]
) -> None:
    jobs, answers = small
    turn = iter(range(10_000))
    every_third = Knowing(answers, lambda _: next(turn) % 3 > 0, vocab_size=tokenizer.vocab_size, ragged=True)
    built = bundle(small_decoder(tokenizer), tokenizer, drafting(4), every_third)
    found = built.run(*jobs)
    assert [answer.tokens for answer in found] == [answers[job.id] for job in jobs]
    counts = [answer.finished.drafts["test"] for answer in found]
    for answer, (passes, _, accepted) in zip(found, counts, strict=True):
        # tokens = passes + accepted: passes without a draft are those that are left
        assert 0 < passes < len(answer.tokens) - accepted
    assert 0 < sum(accepted for _, _, accepted in counts) < sum(drafted for _, drafted, _ in counts)

"""The engine with each draft model: same answers, and each draft the one that its tokens alone would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from sparkle.drafting.proposer import Proposer
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Device, EngineSettings
from sparkle.model.cache import SequenceCache
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, Bundle, bundle, engine_around, max_pages
from tests.engine.draft_models import Asked, Beside, DFlashBeside, MtpBeside, Recording
from tests.engine.proposers import adversary
from tests.engine.small_model import small_decoder
from tests.engine.test_engine_drafts import drafting, small_jobs


@pytest.fixture(scope="module", params=["mtp", "dflash2"])
def beside(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Beside:
    name: str = request.param
    if name == "mtp":
        return MtpBeside(tokenizer)
    return DFlashBeside(tokenizer, tmp_path_factory.mktemp("draft"))


class Drafting:
    """An engine whose runner has the draft model, and a record of its drafts."""

    def __init__(
        self,
        beside: Beside,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        sizes = settings.sizes(Device.CPU)
        cache = SequenceCache(
            beside.config,
            num_pages=sizes.num_pages,
            page_tokens=sizes.page_tokens,
            num_slots=sizes.state_slots,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        self.helper = beside.helper(cache)
        self.record = Recording(
            Runner(
                beside.decoder,
                cache,
                Sampler(tokenizer.vocab_size),
                max_pages=max_pages(beside.config, sizes),
                helper=self.helper,
            )
        )
        self._beside = beside
        self._last_token = tokenizer.vocab_size - 1
        self.bundle: Bundle = engine_around(self.record, beside.config, tokenizer, sizes, proposer, clock)

    def check(self, jobs: Sequence[Job], *, least: int) -> None:
        """At least so many drafts were made, each of the tokens in front of it alone."""
        prompts = {job.id: job.prompt_tokens or [] for job in jobs}
        assert len(self.record.asked) >= least
        for asked in self.record.asked:
            tokens = [*prompts[asked.request], *self.bundle.answers[asked.request].tokens]
            expected = self._beside.expected(tokens[: asked.start + 1], asked)
            # the head has rows for more tokens than there are
            assert asked.guessed == tuple(min(token, self._last_token) for token in expected)


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> tuple[list[Job], list[Answer]]:
    jobs = small_jobs(8)
    return jobs, bundle(small_decoder(tokenizer), tokenizer, drafting(0, slots=8)).run(*jobs)


@pytest.mark.parametrize(("width", "slots", "pass_tokens"), [(1, 3, 12), (3, 8, 64), (6, 2, 23), (15, 4, 90)])
def test_answers_are_those_without_drafts_and_drafts_those_of_the_tokens(
    tokenizer: Tokenizer,
    beside: Beside,
    plain: tuple[list[Job], list[Answer]],
    width: int,
    slots: int,
    pass_tokens: int,
) -> None:
    """Prompts are read in chunks beside drafts, slots are used again, and widths end with the answers."""
    jobs, expected = plain
    made = Drafting(beside, tokenizer, drafting(width, slots=slots, pass_tokens=pass_tokens))
    for answer, one in zip(made.bundle.run(*jobs), expected, strict=True):
        assert answer.tokens == one.tokens
        assert answer.finished.finish_reason == one.finished.finish_reason
        (passes, drafted, accepted) = answer.finished.drafts[beside.name]
        assert (drafted, accepted) == (answer.finished.drafted_tokens, answer.finished.accepted_tokens)
        # each pass behind the prompt's writes one token and the accepted ones; the last token needs no draft
        assert passes in (len(answer.tokens) - 1 - accepted, len(answer.tokens) - 2 - accepted)
        assert passes <= drafted <= passes * width
    made.check(jobs, least=60)
    assert {len(asked.guessed) for asked in made.record.asked} > {1} or width == 1


def test_copies_and_guesses_take_turns(
    tokenizer: Tokenizer, beside: Beside, plain: tuple[list[Job], list[Answer]]
) -> None:
    """The draft model follows what others drafted, right or wrong."""
    jobs, expected = plain
    answers = {job.id: answer.tokens for job, answer in zip(jobs, expected, strict=True)}
    proposer = adversary(answers, tokenizer.vocab_size)
    made = Drafting(beside, tokenizer, drafting(2, slots=3, pass_tokens=40), proposer)
    found = made.bundle.run(*jobs)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert sum(answer.finished.drafts.get("test", [0, 0, 0])[2] for answer in found) > 10
    made.check(jobs, least=10)


def test_the_end_inside_a_draft_and_what_takes_the_slot_then(tokenizer: Tokenizer, beside: Beside) -> None:
    """Answers that end by stop token, stop string, length and cancel, all on one slot."""
    (first,) = small_jobs(1)
    (answer,) = bundle(small_decoder(tokenizer), tokenizer).run(first)
    by_token = Sampling(temperature=0.0, stop_tokens=[answer.tokens[7]])
    by_text = Sampling(temperature=0.0, stop=[answer.text[len(answer.text) // 2 :][:3]])
    jobs = [
        first.evolve(id=new_job_id(), sampling=by_token),
        first.evolve(id=new_job_id(), sampling=by_text),
        first.evolve(id=new_job_id(), max_tokens=4),
        first,
    ]
    gone = Job(prompt_tokens=[7] * 30, max_tokens=40, sampling=GREEDY)
    made = Drafting(beside, tokenizer, drafting(5, slots=1))
    made.bundle.submit(gone)
    for _ in range(4):
        made.bundle.step()
    made.bundle.engine.cancel(gone.id)
    found = made.bundle.run(*jobs)
    for one in found:
        assert one.tokens == answer.tokens[: len(one.tokens)]
    assert [one.finished.finish_reason for one in found[:3]] == [
        FinishReason.STOP,
        FinishReason.STOP,
        FinishReason.LENGTH,
    ]
    assert [len(found[0].tokens), len(found[2].tokens), found[3].tokens] == [8, 4, answer.tokens]
    made.check([gone, *jobs], least=20)


def test_a_slots_state_copied_out_and_in_drafts_the_same(tokenizer: Tokenizer, beside: Beside) -> None:
    """What a checkpoint has to hold of a sequence: wiped and brought back, drafts do not change."""
    (job,) = small_jobs(1)
    drafts: list[list[Asked]] = []
    for copied in (False, True):
        made = Drafting(beside, tokenizer, drafting(4, slots=1))
        made.bundle.submit(job)
        for _ in range(5):
            made.bundle.step()
        if copied:
            parts = made.helper.slot_state(0)
            kept = [part.clone() for part in parts]
            assert any(part.any() for part in kept)
            for part in parts:
                part.zero_()
            for part, before in zip(parts, kept, strict=True):
                part.copy_(before)
        while made.bundle.engine.has_work:
            made.bundle.step()
        drafts.append(made.record.asked)
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) > 10

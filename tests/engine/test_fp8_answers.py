"""The FP8 engine answers as the float32 one: the bundled model, on the CPU and, by hand, on an H200."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from sparkle.drafting.proposer import Proposer
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Device, EngineSettings, Sizes, default_model
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import Decoder
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Bundle, engine_around, max_pages
from tests.engine.proposers import adversary, oracle
from tests.model.driver import CPU
from tests.model.fp8_driver import quantised
from tests.model.tiny import Tiny

ANSWER_TOKENS = 20
TIES = {0: 0, 1: 2, 2: 1, 3: 0}
"""Of each of the demo's prompts, so many tokens of the answer begin it, of which the last is nearly a tie."""
CLEAR = tuple(number for number, given in TIES.items() if not given)


@dataclass(frozen=True)
class Model:
    """The bundled model in both forms, and its float32 answers."""

    tiny: Tiny
    tokenizer: Tokenizer
    answers: list[list[int]]

    @classmethod
    def load(cls) -> Model:
        tiny, tokenizer = Tiny.load(), Tokenizer.load(default_model())
        of = sizes()
        cache = SequenceCache(
            tiny.config,
            num_pages=of.num_pages,
            page_tokens=of.page_tokens,
            num_slots=of.state_slots,
            device=CPU,
            dtype=torch.float32,
        )
        runner = Runner(
            Decoder(tiny.config, tiny.weights),
            cache,
            Sampler(tokenizer.vocab_size),
            max_pages=max_pages(tiny.config, of),
        )
        exact = engine_around(runner, tiny.config, tokenizer, of)
        return cls(tiny, tokenizer, [answer.tokens for answer in exact.run(*jobs(tiny))])

    def fp8(
        self,
        of: Sizes,
        widths: Sequence[int],
        device: torch.device = CPU,
        *,
        prompt_rows: Sequence[int] = (),
        proposer: Proposer | None = None,
    ) -> Bundle:
        """An engine around the FP8 decoder."""
        tiny = self.tiny
        cache = Fp8Cache(
            tiny.config,
            num_pages=of.num_pages,
            page_tokens=of.page_tokens,
            num_slots=of.state_slots,
            device=device,
        )
        runner = GpuRunner(
            Fp8Decoder(tiny.config, quantised(tiny.weights, device)),
            cache,
            Sampler(self.tokenizer.vocab_size),
            num_slots=of.slots,
            max_pages=max_pages(tiny.config, of),
            widths=widths,
            prompt_rows=prompt_rows,
        )
        return engine_around(runner, tiny.config, self.tokenizer, of, proposer)


def sizes(*, slots: int = 4, pass_tokens: int = 256, page_tokens: int = 16, draft_tokens: int = 0) -> Sizes:
    settings = EngineSettings(
        slots=slots,
        pass_tokens=pass_tokens,
        page_tokens=page_tokens,
        kv_tokens=1024,
        draft_tokens=draft_tokens,
    )
    return settings.sizes(Device.CPU)


def jobs(tiny: Tiny) -> list[Job]:
    return [
        Job(
            prompt_tokens=[*tiny.prompts[number], *tiny.exact_answer(tiny.prompts[number], given)],
            max_tokens=ANSWER_TOKENS,
            sampling=GREEDY,
        )
        for number, given in TIES.items()
    ]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load()


@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (sizes(), (1,)),
        (sizes(slots=2, pass_tokens=19, page_tokens=8), (1, 4, 8, 16)),
        (sizes(slots=1, pass_tokens=70, page_tokens=64), (1, 16)),
    ],
    ids=["whole prompts beside", "chunks in graphs", "one after another"],
)
def test_the_answers_are_those_of_the_float32_engine(model: Model, of: Sizes, widths: Sequence[int]) -> None:
    assert [answer.tokens for answer in model.fp8(of, widths).run(*jobs(model.tiny))] == model.answers


def test_prompts_read_in_pieces_give_the_same_answers(model: Model) -> None:
    built = model.fp8(sizes(), (1,), prompt_rows=(48, 256))
    assert [answer.tokens for answer in built.run(*jobs(model.tiny))] == model.answers


@pytest.mark.parametrize("make", [adversary, oracle])
def test_with_drafts_too(model: Model, make: Callable[[dict[str, list[int]], int], Proposer]) -> None:
    asked = jobs(model.tiny)
    answers = {job.id: answer for job, answer in zip(asked, model.answers, strict=True)}
    proposer = make(answers, model.tokenizer.vocab_size)
    built = model.fp8(sizes(pass_tokens=70, draft_tokens=7), (1, 8), proposer=proposer)
    assert [answer.tokens for answer in built.run(*asked)] == model.answers


def test_a_slot_serves_the_next_request_after_a_cancel(model: Model) -> None:
    built = model.fp8(sizes(slots=1, pass_tokens=64), (1, 16))
    gone, (job, *_) = Job(prompt_tokens=[9] * 90, max_tokens=50, sampling=GREEDY), jobs(model.tiny)
    built.submit(gone)
    for _ in range(4):
        built.step()
    assert built.answers[gone.id].tokens
    built.engine.cancel(gone.id)
    assert built.run(job)[0].tokens == model.answers[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (sizes(page_tokens=64), (1,)),
        (sizes(slots=2, pass_tokens=19, page_tokens=64), (1, 4, 8, 16)),
        (sizes(slots=1, pass_tokens=70, page_tokens=64), (1, 16)),
    ],
    ids=["whole prompts beside", "chunks in graphs", "one after another"],
)
def test_on_a_gpu_too(model: Model, of: Sizes, widths: Sequence[int], gpu: torch.device) -> None:
    built = model.fp8(of, widths, gpu, prompt_rows=(128, 256) if of.slots == 4 else ())
    assert [answer.tokens for answer in built.run(*jobs(model.tiny))] == model.answers
    again = [job.evolve(id=Job(prompt="a").id) for job in jobs(model.tiny)]
    assert [answer.tokens for answer in built.run(*again)] == model.answers

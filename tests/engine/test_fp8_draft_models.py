"""The FP8 engine with each draft model: the answers without drafts, on the CPU and, by hand, on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sparkle.drafting.dflash_helper import Fp8DFlashHelper
from sparkle.drafting.mtp_helper import Fp8MtpHelper
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Sizes, default_model
from sparkle.engine.verify_pass import DraftModel
from sparkle.model.config import ModelConfig
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_fp8_dflash_weights
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_dflash import Fp8DFlash
from sparkle.model.fp8_mtp import Fp8Mtp
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer, engine_around, max_pages
from tests.engine.draft_models import Asked, Recording, with_head
from tests.engine.test_fp8_answers import jobs, sizes
from tests.model.dflash_reference import DFlashReference, DFlashShape
from tests.model.driver import CPU
from tests.model.fp8_driver import quantised
from tests.model.tiny import Tiny

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, seed=2),
    Sampling(temperature=0.0, logprobs=1),
    Sampling(temperature=0.5, repetition_penalty=1.1, seed=3),
)


@dataclass(frozen=True)
class Model:
    """The bundled model with random draft models beside it."""

    tiny: Tiny
    tokenizer: Tokenizer
    draft: Path

    def engine(self, name: str | None, of: Sizes, widths: Sequence[int], device: torch.device) -> Engine:
        """With the draft model called `name`, or none."""
        weights, config = with_head(self.tiny.weights, self.tiny.config)
        fp8 = quantised(weights, device)
        cache = Fp8Cache(
            config,
            num_pages=of.num_pages,
            page_tokens=of.page_tokens,
            num_slots=of.slots,
            device=device,
        )
        decoder = Fp8Decoder(config, fp8)
        runner = GpuRunner(
            decoder,
            cache,
            Sampler(self.tokenizer.vocab_size),
            num_slots=of.slots,
            max_pages=max_pages(config, of),
            widths=widths,
            prompt_rows=(128,),
            helper=None if name is None else self._helper(name, config, fp8, decoder, cache, of.slots),
        )
        return Engine(Recording(runner), config, self.tokenizer, of)

    def _helper(
        self,
        name: str,
        config: ModelConfig,
        weights: Fp8DecoderWeights,
        decoder: Fp8Decoder,
        cache: Fp8Cache,
        slots: int,
    ) -> DraftModel:
        device = cache.keys.device
        if name == "mtp":
            head = Fp8Mtp(config, weights)
            return Fp8MtpHelper(decoder, head, cache, num_slots=slots, hidden_size=config.hidden_size)
        draft_config = read_dflash_config(self.draft, config)
        model = Fp8DFlash(
            draft_config,
            load_fp8_dflash_weights(self.draft, draft_config, device),
            embedding=weights.embedding,
            lm_head=weights.lm_head,
        )
        ring = DFlashCache(draft_config, num_slots=slots, device=device, dtype=torch.bfloat16)
        return Fp8DFlashHelper(decoder, model, draft_config, ring)


class Engine:
    """Answers jobs, and tells the drafts that were made for them."""

    def __init__(self, record: Recording, config: ModelConfig, tokenizer: Tokenizer, of: Sizes) -> None:
        self._record = record
        self._bundle = engine_around(record, config, tokenizer, of)

    def run(self, asked: Sequence[Job]) -> list[Answer]:
        return self._bundle.run(*asked)

    @property
    def drafts(self) -> list[Asked]:
        return self._record.asked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    tiny, directory = Tiny.load(), tmp_path_factory.mktemp("draft")
    config = tiny.config
    DFlashReference(
        DFlashShape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=256,
            head_dim=64,
            conv_group_size=16,
            mask_token_id=config.vocab_size - 1,
            num_target_layers=config.num_layers,
            target_layer_ids=(0, config.num_layers - 1),
        ),
        seed=3,
    ).save(directory)
    return Model(tiny, Tokenizer.load(default_model()), directory)


def asked_of(tiny: Tiny, *, max_tokens: int) -> list[Job]:
    """Each of the prompts, drawn in each way."""
    return [
        job.evolve(id=new_job_id(), sampling=sampling, max_tokens=max_tokens)
        for job in jobs(tiny)
        for sampling in SAMPLINGS
    ]


@pytest.mark.parametrize(("name", "pass_tokens"), [("mtp", 60), ("dflash2", 60), ("dflash2", 300)], ids=str)
def test_the_answers_are_those_without_a_draft_model(model: Model, name: str, pass_tokens: int) -> None:
    """Drawn in the pass and behind it, in one batch; prompts are read in pieces or as wholes."""
    of = sizes(slots=4, pass_tokens=pass_tokens, draft_tokens=3)
    asked = asked_of(model.tiny, max_tokens=6)[1:5]
    plain = model.engine(None, of, (1,), CPU).run(asked)
    engine = model.engine(name, of, (1, 4), CPU)
    for answer, expected in zip(engine.run(asked), plain, strict=True):
        assert answer.tokens == expected.tokens
        assert answer.finished.drafts[name][0] > 0
    assert len(engine.drafts) >= 12


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "of", "widths"),
    [
        ("mtp", sizes(slots=4, pass_tokens=90, page_tokens=64, draft_tokens=3), (1, 4)),
        ("dflash2", sizes(slots=8, pass_tokens=300, page_tokens=64, draft_tokens=15), (1, 16)),
    ],
    ids=["mtp", "dflash2"],
)
def test_on_a_gpu_too(model: Model, name: str, of: Sizes, widths: Sequence[int], gpu: torch.device) -> None:
    """The answers are those without drafts, twice to the token, and most drafts those that the CPU makes."""
    asked = asked_of(model.tiny, max_tokens=12)
    plain = model.engine(None, of, (1,), gpu).run(asked)
    engine = model.engine(name, of, widths, gpu)
    found = engine.run(asked)
    same = [answer.tokens == expected.tokens for answer, expected in zip(found, plain, strict=True)]
    # sums in another order may turn a tie
    assert sum(same) >= len(same) - 1
    first = list(engine.drafts)
    again = engine.run([job.evolve(id=new_job_id(), sampling=job.sampling) for job in asked])
    greedy = [place for place, job in enumerate(asked) if job.sampling.temperature == 0.0]
    assert [again[place].tokens for place in greedy] == [found[place].tokens for place in greedy]
    on_cpu = model.engine(name, of, widths, CPU)
    on_cpu.run([job.evolve(max_tokens=5) for job in asked[:3]])
    theirs = {(one.request, one.start): one.guessed[0] for one in on_cpu.drafts}
    mine = {(one.request, one.start): one.guessed[0] for one in first}
    both = [(token, theirs[place]) for place, token in mine.items() if place in theirs]
    assert len(both) >= 6
    assert sum(token == other for token, other in both) >= 0.8 * len(both)

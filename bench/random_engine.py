"""An engine over the 27B shapes with random weights, put together as the served one. Knows no load.

Random weights agree with no draft, so how many tokens of one are kept is not found but given, with this mean.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from sparkle.engine.assemble import Assembly, Loaded, assemble
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.engine import PassRunner
from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.memory_plan import MemoryPlan
from sparkle.engine.plan import PassPlan, PassResult, Span
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Device, EngineSettings, Sizes
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_loader import Fp8LoadReport
from sparkle.model.fp8_weights import Fp8DecoderWeights, tensor_bytes
from sparkle.model.published_config import config_json, generation_json
from sparkle.model.random_checkpoint import TEXT_FILES
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import bundled_checkpoint, shape_27b

SEED = 7
SMALL_BYTES = 10**10
"""What a small model in a test may take."""


def served_shape() -> ModelConfig:
    """The 27B shapes, but that no answer ends before its greatest length: no sampler draws the last token."""
    config = shape_27b()
    return replace(config, end_tokens=(config.vocab_size - 1,))


def write_text_files(config: ModelConfig, directory: Path) -> None:
    """What an engine reads of a checkpoint besides weights, with sparkle-tiny's words.

    Names without a use fill the vocabulary up to the model's but for its last token.
    """
    for name in TEXT_FILES:
        shutil.copyfile(bundled_checkpoint() / name, directory / name)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    known = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    tokenizer["model"]["vocab"] |= {f"unused{token}": token for token in range(known, config.vocab_size - 1)}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    for name, fields in (
        ("config.json", config_json(config)),
        ("generation_config.json", generation_json(config)),
    ):
        (directory / name).write_text(json.dumps(fields), encoding="utf-8")


class GivenDrafts:
    """A PassRunner whose drafts are right as often as is given: it passes for the one who drew them."""

    def __init__(self, runner: PassRunner) -> None:
        self._runner = runner
        self.device = runner.device
        self.draft_model = runner.draft_model
        self.pass_ms: Mapping[Bucket, float] = runner.pass_ms

    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """See PassRunner: what was drawn of a draft's place was guessed, and what follows was not."""
        result = self._runner.run(plan, states)
        drawn = result.by_request
        guessed = {
            span.request: told([one.token for one in drawn.get(span.request, ())], len(span.draft))
            for span in plan.spans
            if span.draft
        }
        return replace(result, guessed=guessed)

    def forget(self) -> None:
        """See PassRunner."""
        self._runner.forget()


def told(drawn: list[int], draft_tokens: int) -> tuple[int, ...]:
    """A draft of which all of `drawn` but its last token was right."""
    right = drawn[:-1]
    return (*right, *[-1] * (draft_tokens - len(right)))


class GivenCounts:
    """A GivenCount: of spans of `width` rows `mean` tokens on average, fewer of shorter ones."""

    def __init__(self, mean: float, *, width: int, seed: int) -> None:
        """ValueError where `mean` is not from 1 to `width`."""
        if not 1 <= mean <= width:
            raise ValueError(f"mean is {mean} but must be 1 to {width}")
        self._chance = (mean - 1) / max(1, width - 1)
        self._order = Random(seed)

    def __call__(self, span: Span) -> int:
        """So many tokens count: each guess is right by chance, whatever became of those before it."""
        return 1 + sum(self._order.random() < self._chance for _ in span.draft)


@dataclass(slots=True)
class WithGivenDrafts:
    """A `Loaded` whose runner keeps as many tokens of a draft as is given."""

    plan: MemoryPlan
    sizes: Sizes
    device: torch.device
    skipped: int
    loaded: LoadedGpu
    count: GivenCounts

    def runner(self, sampler: Sampler, *, max_pages: int) -> PassRunner:
        """See Loaded."""
        return GivenDrafts(self.loaded.runner(sampler, max_pages=max_pages, given_count=self.count))


class RandomModel:
    """Random weights, of which engines with different settings are made, one after another."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """As `served_shape`, on a GPU; in tests a smaller one, on the CPU."""
        self.config = config
        self._device = device
        self._weights = random_fp8_weights(config, device, seed=SEED)

    @property
    def pass_weight_bytes(self) -> int:
        """What a pass reads: not the embedding, of which it takes a few rows, nor the draft head."""
        weights = self._weights
        return tensor_bytes((weights.layers, weights.norm, weights.lm_head))

    def assembly(self, settings: EngineSettings, *, kept: float | None) -> Assembly:
        """An engine with these settings, its own cache and its own graphs.

        `kept`: tokens that a pass with a whole draft writes of a sequence, on average; None where nothing is
        drafted. The engine before must be forgotten: both would not fit.
        """
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        with TemporaryDirectory() as name:
            directory = Path(name)
            write_text_files(self.config, directory)
            return assemble(directory, settings, load=partial(self._load, kept=kept))

    def _load(
        self,
        directory: Path,
        config: ModelConfig,
        settings: EngineSettings,
        watch: Stopwatch,
        *,
        kept: float | None,
    ) -> Loaded:
        sizes = settings.sizes(Device.CUDA)
        own_bytes = tensor_bytes(self._weights)
        on_gpu = self._device.type == "cuda"
        loaded = LoadedGpu(
            directory,
            config,
            sizes,
            watch,
            device=self._device,
            name=torch.cuda.get_device_name() if on_gpu else "the CPU",
            free_bytes=own_bytes + (torch.cuda.mem_get_info()[0] if on_gpu else SMALL_BYTES),
            read_weights=self._read_weights,
        )
        if kept is None:
            return loaded
        count = GivenCounts(kept, width=1 + sizes.draft_tokens, seed=SEED)
        return WithGivenDrafts(loaded.plan, loaded.sizes, loaded.device, loaded.skipped, loaded, count)

    def _read_weights(
        self, _directory: Path, _config: ModelConfig, _device: torch.device
    ) -> tuple[Fp8DecoderWeights, Fp8LoadReport]:
        return self._weights, Fp8LoadReport(quantised=0, skipped=(), read_bytes=0)

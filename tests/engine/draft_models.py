"""Both draft models with random weights beside the small decoder, and what they guess from scratch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sparkle.drafting.dflash_helper import FloatDFlashHelper
from sparkle.drafting.mtp_helper import FloatMtpHelper
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.engine import PassRunner
from sparkle.engine.plan import PassPlan, PassResult
from sparkle.engine.runner import DraftModel
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.decoder import Decoder
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig, read_dflash_config
from sparkle.model.dflash_selector import Draws
from sparkle.model.dflash_weights import load_dflash_weights
from sparkle.model.mtp import Mtp
from sparkle.model.taps import Taps
from sparkle.text.tokenizer import Tokenizer
from tests.engine.small_model import config_for, small_weights
from tests.model.dflash_reference import DFlashReference, DFlashShape
from tests.model.driver import CPU, Driver
from tests.model.mtp_driver import MtpDriver


@dataclass(frozen=True)
class Asked:
    """One draft that was asked for during a pass, and the one that was made."""

    request: str
    start: int
    temperature: float
    chances: tuple[float, ...]
    guessed: tuple[int, ...]


@dataclass
class Recording:
    """A runner that remembers what was guessed."""

    runner: PassRunner
    asked: list[Asked] = field(default_factory=list[Asked])

    @property
    def device(self) -> torch.device:
        return self.runner.device

    @property
    def draft_model(self) -> str | None:
        return self.runner.draft_model

    @property
    def pass_ms(self) -> Mapping[Bucket, float]:
        return self.runner.pass_ms

    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        settings = {
            span.request: (
                span.start,
                states[span.request].sampling.temperature,
                tuple(states[span.request].chance(ahead) for ahead in range(span.guesses)),
            )
            for span in plan.spans
            if span.guesses
        }
        result = self.runner.run(plan, states)
        assert set(result.guessed) == set(settings)
        for request, guessed in result.guessed.items():
            self.asked.append(Asked(request, *settings[request], guessed))
        return result

    def forget(self) -> None:
        self.runner.forget()


class MtpBeside:
    """The decoder with a draft head of its own."""

    name = "mtp"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.config = dataclasses.replace(config_for(tokenizer), has_mtp=True)
        self.weights = small_weights(self.config)
        self.decoder = Decoder(self.config, self.weights)

    def helper(self, cache: SequenceCache) -> DraftModel:
        """Beside `cache`."""
        head = Mtp(self.config, self.weights)
        return FloatMtpHelper(self.decoder, head, cache, hidden_size=self.config.hidden_size)

    def expected(self, tokens: Sequence[int], asked: Asked) -> tuple[int, ...]:
        """The draft behind `tokens`, which are read at once."""
        driver = MtpDriver(self.config, self.weights)
        start, _ = driver.read((driver.start(), tokens))
        (draft,) = driver.draft(start, len(asked.guessed))
        return tuple(draft)


class DFlashBeside:
    """The decoder and a DFlash2 model, from a directory."""

    name = "dflash2"

    def __init__(self, tokenizer: Tokenizer, directory: Path) -> None:
        self.config = config_for(tokenizer)
        self.weights = small_weights(self.config)
        self.decoder = Decoder(self.config, self.weights)
        self.draft_config = save_dflash(self.config, directory)
        self._model = DFlash(
            self.draft_config,
            load_dflash_weights(directory, self.draft_config, CPU),
            embedding=self.weights.embedding,
            lm_head=self.weights.lm_head,
        )

    def helper(self, cache: SequenceCache) -> DraftModel:
        """Beside `cache`."""
        ring = self._ring(cache.states.shape[1])
        return FloatDFlashHelper(self.decoder, self._model, self.draft_config, ring)

    def expected(self, tokens: Sequence[int], asked: Asked) -> tuple[int, ...]:
        """The draft behind `tokens`, which are read at once."""
        read, ring = len(tokens) - 1, self._ring(1)
        taps = Taps(self.draft_config.target_layers)
        driver = Driver(self.decoder, self.config)
        driver.run((driver.start(), tokens[:-1]), taps=taps)
        rows = ContextBatch(
            span_starts=torch.tensor([0, read]),
            slots=torch.tensor([0]),
            contexts=torch.tensor([0]),
            kept=torch.tensor([read]),
        )
        self._model.extend(taps.outputs, rows, ring)
        draft = self._model.propose(
            torch.tensor(tokens[-1:]),
            torch.tensor([0]),
            torch.tensor([read]),
            ring,
            rows=1 + len(asked.guessed),
            draws=Draws(
                temperatures=torch.tensor([asked.temperature], dtype=torch.float64),
                chances=torch.tensor([asked.chances], dtype=torch.float64),
            ),
        )
        return tuple(int(token) for token in draft[0])

    def _ring(self, slots: int) -> DFlashCache:
        ring = DFlashCache(self.draft_config, num_slots=slots, device=CPU, dtype=torch.float32)
        # what another sequence left there is wiped, or never read
        ring.keys[:, -1].fill_(torch.nan)
        ring.values[:, -1].fill_(torch.nan)
        return ring


Beside = MtpBeside | DFlashBeside


def save_dflash(config: ModelConfig, directory: Path) -> DFlashConfig:
    """Write a random DFlash2 model for `config` to `directory`."""
    shape = DFlashShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        mask_token_id=config.vocab_size - 1,
        num_target_layers=config.num_layers,
        target_layer_ids=(2, 0, 3),
    )
    DFlashReference(shape, 5).save(directory)
    return read_dflash_config(directory, config)

"""From the setting draft_model to a draft model beside a decoder, in float32 or FP8. Knows no jobs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sparkle.drafting.dflash_helper import FloatDFlashHelper, Fp8DFlashHelper
from sparkle.drafting.mtp_helper import FloatMtpHelper, Fp8MtpHelper
from sparkle.engine.runner import DraftModel as FloatDraftModel
from sparkle.engine.settings import NO_DRAFT_MODEL, OWN_HEAD, Sizes
from sparkle.engine.verify_pass import DraftModel as Fp8DraftModel
from sparkle.errors import CheckpointError, ConfigError
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.decoder import Decoder
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import fp8_bytes, load_dflash_weights, load_fp8_dflash_weights
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_dflash import Fp8DFlash
from sparkle.model.fp8_mtp import Fp8Mtp
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.mtp import Mtp
from sparkle.model.weights import DecoderWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNeeds:
    """What a draft model takes beside the decoder in FP8, in bytes."""

    weights_bytes: int = 0
    slot_bytes: int = 0
    row_bytes: int = 0
    """Of a row of a pass: what the model puts out for it."""


class OwnHead:
    """The draft head in the model's own checkpoint, whose weights are loaded with the rest."""

    def __init__(self, target: ModelConfig, vocab_size: int) -> None:
        """`vocab_size`: what it guesses among, see Mtp. Raises ConfigError where the model has none."""
        if not target.has_mtp:
            raise _no_head()
        self._target = target
        self._vocab_size = vocab_size

    def needs(self) -> DraftNeeds:
        """Its keys and values are in the pages that every model of this kind has."""
        row_bytes = 2 * self._target.hidden_size
        return DraftNeeds(slot_bytes=row_bytes, row_bytes=row_bytes)

    def in_float32(self, decoder: Decoder, weights: DecoderWeights, cache: SequenceCache) -> FloatDraftModel:
        """Beside the decoder with `weights`. Raises ConfigError where the files have none."""
        if weights.mtp is None:
            raise _no_head()
        head = Mtp(self._target, weights, draft_vocab_size=self._vocab_size)
        return FloatMtpHelper(decoder, head, cache, hidden_size=self._target.hidden_size)

    def in_fp8(
        self, decoder: Fp8Decoder, weights: Fp8DecoderWeights, cache: Fp8Cache, *, num_slots: int
    ) -> Fp8DraftModel:
        """Beside the decoder with `weights`. Raises ConfigError where the files have none."""
        if weights.mtp is None:
            raise _no_head()
        head = Fp8Mtp(self._target, weights, draft_vocab_size=self._vocab_size)
        hidden_size = self._target.hidden_size
        return Fp8MtpHelper(decoder, head, cache, num_slots=num_slots, hidden_size=hidden_size)


class BlockModel:
    """A DFlash2 model in a directory of its own."""

    def __init__(self, directory: Path, target: ModelConfig, vocab_size: int) -> None:
        """`vocab_size`: what it guesses among, see DFlash.

        Raises CheckpointError or one of its kinds where there is none for `target`, ConfigError where it
        chooses among more tokens.
        """
        self._directory = directory
        self._vocab_size = vocab_size
        with _named(directory):
            self._config = read_dflash_config(directory, target)
        if vocab_size < self._config.candidates:
            raise ConfigError(
                f"draft_vocab_size is {vocab_size} but must be at least selector_top_k of draft_model "
                f"{directory}, {self._config.candidates}; leave it out for the default"
            )

    def needs(self) -> DraftNeeds:
        """Weights, a ring for each slot, and the tapped layers' outputs."""
        return DraftNeeds(
            weights_bytes=fp8_bytes(self._config),
            slot_bytes=DFlashCache.bytes_per_slot(self._config, torch.bfloat16),
            row_bytes=2 * self._config.taps_size,
        )

    def in_float32(self, decoder: Decoder, weights: DecoderWeights, cache: SequenceCache) -> FloatDraftModel:
        """Beside the decoder with `weights`.

        Raises CheckpointError or one of its kinds, ConfigError where its rings do not fit.
        """
        device, config = cache.keys.device, self._config
        with _named(self._directory):
            own = load_dflash_weights(self._directory, config, device)
        model = DFlash(
            config,
            own,
            embedding=weights.embedding,
            lm_head=weights.lm_head,
            draft_vocab_size=self._vocab_size,
        )
        num_slots = cache.states.shape[1]
        try:
            ring = DFlashCache(config, num_slots=num_slots, device=device, dtype=cache.keys.dtype)
        # torch has no narrower one for memory that cannot be had
        except RuntimeError:
            raise ConfigError(
                f"no memory for {num_slots} slots with draft_model {self._directory}, whose sliding_window "
                f"is {config.window}; lower slots or cached_slots, or leave draft_model out"
            ) from None
        return FloatDFlashHelper(decoder, model, config, ring)

    def in_fp8(
        self, decoder: Fp8Decoder, weights: Fp8DecoderWeights, cache: Fp8Cache, *, num_slots: int
    ) -> Fp8DraftModel:
        """Beside the decoder with `weights`. Raises CheckpointError or one of its kinds."""
        device, config = cache.keys.device, self._config
        with _named(self._directory):
            own = load_fp8_dflash_weights(self._directory, config, device)
        model = Fp8DFlash(
            config,
            own,
            embedding=weights.embedding,
            lm_head=weights.lm_head,
            draft_vocab_size=self._vocab_size,
        )
        ring = DFlashCache(config, num_slots=num_slots, device=device, dtype=torch.bfloat16)
        return Fp8DFlashHelper(decoder, model, config, ring)


def chosen_draft_model(sizes: Sizes, target: ModelConfig) -> OwnHead | BlockModel | None:
    """What `sizes` asks for beside `target`; None where nothing is drafted, or only copied.

    Raises ConfigError, CheckpointError or one of its kinds, naming the setting, where it is not there.
    """
    default = OWN_HEAD if target.has_mtp else NO_DRAFT_MODEL
    wanted = sizes.draft_model or default
    if wanted == NO_DRAFT_MODEL or not sizes.draft_tokens:
        return None
    vocab_size = min(sizes.draft_vocab_size or target.vocab_size, target.vocab_size)
    if wanted == OWN_HEAD:
        return OwnHead(target, vocab_size)
    if not Path(wanted).is_dir():
        choices = f"{OWN_HEAD}, {NO_DRAFT_MODEL} or the directory of a DFlash2 model"
        raise ConfigError(f"draft_model is {wanted} but must be {choices}; there is no such directory")
    return BlockModel(Path(wanted), target, vocab_size)


@contextmanager
def _named(directory: Path) -> Generator[None]:
    """An error says whose it is: the model has the same files."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"draft_model {directory}: {error}") from None


def _no_head() -> ConfigError:
    return ConfigError(
        f"draft_model is {OWN_HEAD} but the model has no draft head; "
        "name the directory of a DFlash2 model, or leave it out"
    )

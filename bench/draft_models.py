"""The draft models beside the shapes of Qwen3.8-27B, with random weights. Knows no case.

Each guesses among the most frequent tokens alone, as the engine does by default.
"""

from __future__ import annotations

import torch

from bench.engine_model import CUDA, Loaded
from sparkle.drafting.dflash_helper import Fp8DFlashHelper
from sparkle.drafting.mtp_helper import Fp8MtpHelper
from sparkle.engine.verify_pass import DraftModel
from sparkle.kernels import ops
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_weights import DFlashWeights
from sparkle.model.fp8_dflash import Fp8DFlash
from sparkle.model.fp8_mtp import Fp8Mtp
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.random_dflash import random_dflash_weights
from sparkle.model.shapes import shape_dflash_27b

NAMES = ("mtp", "dflash2")
DRAFT_VOCABULARY = 65_536
"""Tokens that are guessed among."""
SEED = 5


def mtp_head(model: Loaded, weights: Fp8DecoderWeights) -> Fp8Mtp:
    """The draft head among `weights`."""
    return Fp8Mtp(model.config, weights, draft_vocab_size=DRAFT_VOCABULARY)


def dflash_weights(config: DFlashConfig) -> DFlashWeights[ops.Fp8Blocks]:
    """Random ones, the same each time."""
    return random_dflash_weights(config, CUDA, seed=SEED)


def dflash_model(
    config: DFlashConfig, own: DFlashWeights[ops.Fp8Blocks], target: Fp8DecoderWeights
) -> Fp8DFlash:
    """The block model with the weights `own`, and embedding and output matrix of `target`."""
    return Fp8DFlash(
        config,
        own,
        embedding=target.embedding,
        lm_head=target.lm_head,
        draft_vocab_size=DRAFT_VOCABULARY,
    )


def draft_model(name: str, model: Loaded, weights: Fp8DecoderWeights, *, slots: int) -> DraftModel:
    """The one of NAMES beside `model`, whose weights are `weights`, for so many slots."""
    if name == "mtp":
        head, hidden_size = mtp_head(model, weights), model.config.hidden_size
        return Fp8MtpHelper(model.decoder, head, model.cache, num_slots=slots, hidden_size=hidden_size)
    config = shape_dflash_27b()
    ring = DFlashCache(config, num_slots=slots, device=CUDA, dtype=torch.bfloat16)
    block_model = dflash_model(config, dflash_weights(config), weights)
    return Fp8DFlashHelper(model.decoder, block_model, config, ring)

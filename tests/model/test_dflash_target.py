"""A DFlash2 model on what a decoder's taps give it: pass by pass, beside another sequence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from sparkle.model.config import read_config
from sparkle.model.decoder import Decoder
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_dflash_weights
from sparkle.model.taps import Taps
from sparkle.model.weights import load_weights
from tests.model.dflash_reference import DFlashReference, DFlashShape
from tests.model.driver import CPU, Driver
from tests.model.published import VOCAB, Published, Shape

LAYERS = (3, 0, 2)
ROWS = 6


@pytest.mark.parametrize("seed", range(4))
def test_drafts_follow_the_published_layers_outputs(tmp_path: Path, seed: int) -> None:
    published = Published(Shape(num_hidden_layers=5), 6)
    published.save(tmp_path)
    target = read_config(tmp_path)
    weights, _ = load_weights(tmp_path, target, device=CPU, dtype=torch.float32)
    shape = DFlashShape(
        vocab_size=VOCAB, mask_token_id=VOCAB - 1, num_target_layers=5, target_layer_ids=LAYERS
    )
    reference = DFlashReference(shape, seed)
    (tmp_path / "draft").mkdir()
    reference.save(tmp_path / "draft")
    config = read_dflash_config(tmp_path / "draft", target)
    model = DFlash(
        config,
        load_dflash_weights(tmp_path / "draft", config, CPU),
        embedding=reference.embedding,
        lm_head=reference.lm_head,
    )
    cache = DFlashCache(config, num_slots=2, device=CPU, dtype=torch.float32)
    order = random.Random(seed)
    tokens = order.choices(range(VOCAB), k=50)
    outputs = published.layer_outputs(tokens)
    driver = Driver(Decoder(target, weights), target)
    sequence, read = driver.start(), 0
    while read + ROWS < len(tokens):
        # another sequence, which drafts nothing, stands in front
        length = order.randint(1, ROWS)
        taps = Taps(config.target_layers)
        other = driver.start()
        driver.run((other, [5, 6]), (sequence, tokens[read : read + length]), taps=taps)
        driver.finish(other)
        batch = ContextBatch(
            span_starts=torch.tensor([0, 2, 2 + length]),
            slots=torch.tensor([-1, 1]),
            contexts=torch.tensor([0, read]),
            kept=torch.tensor([2, length]),
        )
        model.extend(taps.outputs, batch, cache)
        read += length
        draft = model.propose(
            torch.tensor(tokens[read : read + 1]), torch.tensor([1]), torch.tensor([read]), cache, rows=ROWS
        )
        context = torch.cat([outputs[layer][:read] for layer in LAYERS], dim=1)
        assert [int(token) for token in draft[0]] == reference.draft(context, tokens[read], ROWS)

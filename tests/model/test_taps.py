"""What is tapped of a pass are the residuals behind each layer, in both decoders, for the rows asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.model.config import read_config
from sparkle.model.decoder import Decoder
from sparkle.model.taps import Taps
from sparkle.model.weights import load_weights
from tests.model.driver import CPU, Driver
from tests.model.published import VOCAB, Published, Shape
from tests.model.tiny import Tiny

WORST_ERROR = 1e-4  # of residuals of order 1; as the decoder's logits


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny.load()


def test_they_are_the_published_layers_outputs(tmp_path: Path) -> None:
    published = Published(Shape(num_hidden_layers=5), 4)
    published.save(tmp_path)
    config = read_config(tmp_path)
    weights, _ = load_weights(tmp_path, config, device=CPU, dtype=torch.float32)
    driver = Driver(Decoder(config, weights), config)
    tokens = random.Random(1).choices(range(VOCAB), k=30)
    wanted = published.layer_outputs(tokens)
    assert len(wanted) == config.num_layers - 1
    rows = torch.tensor([17, 3, 29])
    # another sequence in front, and layers out of order
    taps = Taps((3, 0, 2), rows + 5)
    driver.run((driver.start(), tokens[:5]), (driver.start(), tokens), taps=taps)
    exact = torch.cat([wanted[layer][rows] for layer in (3, 0, 2)], dim=1)
    assert taps.outputs.dtype == torch.float32
    assert (taps.outputs - exact).abs().max() < WORST_ERROR


def test_without_rows_they_are_those_of_every_row_and_change_no_logit(tiny: Tiny) -> None:
    driver = tiny.exact()
    last = tiny.config.num_layers - 1
    tokens = tiny.prompts[0]
    every, some = Taps((0, last)), Taps((0, last), torch.tensor([2]))
    (plain,) = driver.run((driver.start(), tokens))
    (tapped,) = driver.run((driver.start(), tokens), taps=every)
    driver.run((driver.start(), tokens), taps=some)
    assert torch.equal(plain, tapped)
    assert every.outputs.shape == (len(tokens), 2 * tiny.config.hidden_size)
    assert torch.equal(some.outputs[0], every.outputs[2])


def test_the_fp8_decoder_gives_the_same_but_for_its_rounding(tiny: Tiny) -> None:
    layers = range(tiny.config.num_layers)
    tokens = tiny.prompts[1][:40]
    exact, read, verified = Taps(layers), Taps(layers), Taps(layers, torch.arange(3))
    driver = tiny.exact()
    driver.run((driver.start(), tokens), taps=exact)
    fp8 = tiny.fp8()
    (plain,) = fp8.read((fp8.start(), tokens))
    (tapped,) = fp8.read((fp8.start(), tokens), taps=read)
    assert torch.equal(plain, tapped)
    sequence = fp8.start()
    fp8.read((sequence, tokens[:-3]))
    fp8.verify((sequence, tokens[-3:]), width=16, spare=1, taps=verified)
    assert read.outputs.dtype == torch.bfloat16
    for got, wanted in ((read.outputs, exact.outputs), (verified.outputs, exact.outputs[-3:])):
        by_layer = [part.float().view(len(wanted), len(layers), -1) for part in (got, wanted)]
        # another layer's output, or one without its last product, is off by far more
        assert off(by_layer[0], by_layer[1]).max() < 0.1
        assert off(by_layer[0][:, 1:], by_layer[1][:, :-1]).min() > 0.2


def off(got: Tensor, wanted: Tensor) -> Tensor:
    """How far [T, layers, hidden] are apart, by layer, as a part of `wanted`."""
    return ((got - wanted).square().sum(dim=(0, 2)) / wanted.square().sum(dim=(0, 2))).sqrt()


def test_a_layer_that_is_not_there_is_named(tiny: Tiny) -> None:
    driver = tiny.exact()
    taps = Taps((1, 99))
    driver.run((driver.start(), tiny.prompts[0][:3]), taps=taps)
    with pytest.raises(ValueError, match=r"\[99\]"):
        _ = taps.outputs

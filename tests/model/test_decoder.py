"""The decoder against the published implementation, however the tokens are cut into passes."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.model.config import ModelConfig, read_config
from sparkle.model.decoder import Decoder
from sparkle.model.weights import load_weights
from tests.model.driver import CPU, Driver, Running, batch_of
from tests.model.published import VOCAB, Published, Shape, assert_close

LENGTHS = (1, 2, 63, 64, 65, 200)

SHAPES = {
    "1-linear-1:1": Shape(num_hidden_layers=1, linear_num_key_heads=3, linear_num_value_heads=3),
    "1-full-kv1": Shape(num_hidden_layers=1, full_attention_interval=1, num_key_value_heads=1),
    "2-half-kv4-1:1": Shape(
        num_hidden_layers=2,
        full_attention_interval=2,
        num_key_value_heads=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
    ),
    "4-kv2-3:1": Shape(),
    "5-kv1-2:1": Shape(
        num_hidden_layers=5,
        num_attention_heads=3,
        num_key_value_heads=1,
        linear_num_value_heads=4,
        linear_key_head_dim=24,
        linear_conv_kernel_dim=2,
    ),
    "8-6to1-wide": Shape(
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=64,
        linear_key_head_dim=32,
        linear_value_head_dim=8,
        hidden_size=40,
        rope_theta=1e7,
        partial_rotary_factor=0.5,
    ),
    "9-kv4-3:1": Shape(num_hidden_layers=9, num_attention_heads=8, num_key_value_heads=4, head_dim=24),
}


class Pair:
    """One random model twice: as published and as ours, read from the published one's files."""

    def __init__(self, shape: Shape, seed: int, directory: Path) -> None:
        self.published = Published(shape, seed)
        self.published.save(directory)
        self.directory = directory
        self.config: ModelConfig = read_config(directory)
        weights, _ = load_weights(directory, self.config, device=CPU, dtype=torch.float32)
        self.decoder = Decoder(self.config, weights)
        order = random.Random(seed)
        self.texts = [[order.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]
        self.wanted = [self.published.logits(text) for text in self.texts]

    def driver(self, page_tokens: int = 16) -> Driver:
        return Driver(self.decoder, self.config, page_tokens=page_tokens)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name: str = request.param
    return Pair(SHAPES[name], list(SHAPES).index(name), tmp_path_factory.mktemp("checkpoint"))


def test_whole_prompts(pair: Pair) -> None:
    for text, wanted in zip(pair.texts, pair.wanted, strict=True):
        driver = pair.driver()
        [got] = driver.run((driver.start(), text))
        assert_close(got, wanted)


def test_prompts_in_chunks(pair: Pair) -> None:
    order = random.Random(1)
    for text, wanted in zip(pair.texts, pair.wanted, strict=True):
        driver = pair.driver(page_tokens=order.choice((1, 7, 64)))
        sequence = driver.start()
        cuts = sorted(order.choices(range(len(text) + 1), k=4))
        edges = [0, *cuts, len(text)]
        # equal cuts make empty spans: a pass with nothing to do for a sequence leaves it as it is
        logits = [driver.run((sequence, text[start:stop]))[0] for start, stop in pairwise(edges)]
        assert_close(torch.cat(logits), wanted)


def test_token_by_token(pair: Pair) -> None:
    """All texts at once, one token of each in a pass, as in decoding."""
    driver = pair.driver()
    sequences = [driver.start() for _ in pair.texts]
    logits: list[list[Tensor]] = [[] for _ in pair.texts]
    for place in range(max(LENGTHS)):
        running = [number for number, text in enumerate(pair.texts) if place < len(text)]
        spans = [(sequences[number], pair.texts[number][place : place + 1]) for number in running]
        for number, last in zip(running, driver.run(*spans), strict=True):
            logits[number].append(last)
    for parts, wanted in zip(logits, pair.wanted, strict=True):
        assert_close(torch.cat(parts), wanted)


def test_mixed_passes(pair: Pair) -> None:
    """Chunks of some sequences beside single tokens of others, joining and leaving as they will."""
    order = random.Random(2)
    driver = pair.driver(page_tokens=5)
    waiting = list(range(len(pair.texts)))
    running: dict[int, Running] = {}
    logits: list[list[Tensor]] = [[] for _ in pair.texts]
    while waiting or running:
        if waiting and order.random() < 0.7:
            running[waiting.pop()] = driver.start()
        members = order.sample(list(running), order.randint(0, len(running)))
        counts = [order.choice((1, 1, 2, 3, 30, 70)) for _ in members]
        spans = [
            (running[number], pair.texts[number][running[number].computed :][:count])
            for number, count in zip(members, counts, strict=True)
        ]
        for number, rows in zip(members, driver.run(*spans), strict=True):
            logits[number].append(rows)
            if running[number].computed == len(pair.texts[number]):
                driver.finish(running.pop(number))
    for parts, wanted in zip(logits, pair.wanted, strict=True):
        assert_close(torch.cat(parts), wanted)


def test_positions_of_three_axes(pair: Pair) -> None:
    """As of an image inside a text: time stands still while height and width count."""
    text = pair.texts[3]
    positions = torch.arange(len(text)).repeat(3, 1)
    positions[:, 10:34] = torch.stack(
        (torch.full((24,), 10), 10 + torch.arange(24) // 6, 10 + torch.arange(24) % 6)
    )
    positions[:, 34:] -= 18
    driver = pair.driver()
    sequence = driver.start()
    sequence.pages = [driver.free_pages.pop() for _ in range(4)]
    batch = dataclasses.replace(batch_of([(sequence, text)]), positions=positions)
    assert_close(pair.decoder.forward(batch, driver.cache), pair.published.logits(text, positions))


def test_only_own_cells_and_slots_are_written(pair: Pair) -> None:
    driver = pair.driver(page_tokens=5)
    sequences = [driver.start(), driver.start()]
    driver.run((sequences[0], pair.texts[2]), (sequences[1], pair.texts[1]))
    driver.run((sequences[1], pair.texts[2][:4]))
    for part in (driver.cache.keys, driver.cache.values):
        written = ~part.isnan().flatten(3).any(dim=3)
        expected = torch.zeros_like(written)
        for sequence, total in zip(sequences, (63, 6), strict=True):
            for place in range(total):
                expected[:, sequence.pages[place // 5], place % 5] = True
        assert torch.equal(written, expected)
    others = [slot for slot in range(10) if slot not in {sequence.slot for sequence in sequences}]
    assert bool(driver.cache.states[:, others].isnan().all())
    assert bool(driver.cache.columns[:, others].isnan().all())


def test_logits_come_for_the_rows_asked_for(pair: Pair) -> None:
    text, wanted = pair.texts[2], pair.wanted[2]
    for rows in ([62], [5, 0, 5, 61], []):
        driver = pair.driver()
        sequence = driver.start()
        sequence.pages = [driver.free_pages.pop() for _ in range(4)]
        batch = dataclasses.replace(
            batch_of([(sequence, text)]), logit_rows=torch.tensor(rows, dtype=torch.int64)
        )
        got = pair.decoder.forward(batch, driver.cache)
        assert got.shape == (len(rows), VOCAB)
        if rows:
            assert_close(got, wanted[rows])


def test_a_pass_over_nothing_changes_nothing(pair: Pair) -> None:
    driver = pair.driver()
    sequence = driver.start()
    driver.run((sequence, pair.texts[1]))
    cache = driver.cache
    parts = (cache.keys, cache.values, cache.states, cache.columns)
    before = [part.clone() for part in parts]
    assert driver.run() == []
    [logits] = driver.run((sequence, []))
    assert logits.shape == (0, VOCAB)
    for part, was in zip(parts, before, strict=True):
        assert torch.equal(part.nan_to_num(nan=7.5), was.nan_to_num(nan=7.5))


def test_bfloat16_is_the_same_model_to_its_own_rounding(pair: Pair) -> None:
    """Eight bits of mantissa; the recurrent state and the logits stay float32."""
    weights, _ = load_weights(pair.directory, pair.config, device=CPU, dtype=torch.bfloat16)
    driver = Driver(Decoder(pair.config, weights), pair.config, dtype=torch.bfloat16)
    sequence = driver.start()
    text, wanted = pair.texts[2], pair.wanted[2]
    logits = [driver.run((sequence, part))[0] for part in (text[:40], text[40:41], text[41:])]
    assert logits[0].dtype == torch.float32
    assert float((torch.cat(logits) - wanted).square().mean().sqrt()) < 0.03

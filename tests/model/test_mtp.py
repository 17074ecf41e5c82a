"""The draft head in float32 against its published equations, however its rows are cut into passes."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.model.config import LayerType, ModelConfig, read_config
from sparkle.model.weights import LoadReport, load_weights
from tests.model.driver import CPU, batch_of
from tests.model.mtp_driver import MtpDriver
from tests.model.published import VOCAB, Shape, assert_close
from tests.model.published_mtp import PublishedMtp

CHAIN = 15
LENGTHS = (2, 3, 17, 70)

SHAPES = {
    "1-full-kv1": Shape(num_hidden_layers=1, full_attention_interval=1, num_key_value_heads=1),
    "4-kv2": Shape(),
    "3-linear": Shape(num_hidden_layers=3),
    "4-6to1-wide": Shape(
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=64,
        hidden_size=40,
        rope_theta=1e7,
        partial_rotary_factor=0.5,
    ),
}


class Pair:
    """One random model twice: as published and as ours, read from the published one's files."""

    def __init__(self, shape: Shape, seed: int, directory: Path) -> None:
        self.published = PublishedMtp(shape, seed)
        self.published.save(directory)
        self.config: ModelConfig = read_config(directory)
        self.weights, self.report = load_weights(directory, self.config, device=CPU, dtype=torch.float32)
        order = random.Random(seed)
        self.texts = [[order.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]

    def driver(self, page_tokens: int = 16) -> MtpDriver:
        return MtpDriver(self.config, self.weights, page_tokens=page_tokens)

    def outputs(self, text: list[int]) -> Tensor:
        return self.published.outputs(self.published.decoder.hidden(text[:-1]), text[1:])


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name: str = request.param
    return Pair(SHAPES[name], list(SHAPES).index(name), tmp_path_factory.mktemp("checkpoint"))


def test_every_tensor_of_the_head_is_taken(pair: Pair) -> None:
    assert pair.report == LoadReport(dequantised=0, skipped=())
    assert pair.config.num_kv_layers == pair.config.layer_types.count(LayerType.FULL) + 1


def test_the_decoder_gives_what_its_logits_are_made_of(pair: Pair) -> None:
    text = pair.texts[2]
    driver = pair.driver()
    sequence = driver.start()
    driver.run((sequence, text[:5]))
    sequence.pages += [driver.free_pages.pop()]
    batch = batch_of([(sequence, text[5:])])
    batch.logit_rows[:] = batch.logit_rows.flip(0)
    logits, hidden = driver.decoder.forward_with_hidden(batch, driver.cache)
    assert_close(hidden, pair.published.decoder.hidden(text)[5:])
    assert_close(logits, pair.published.decoder.logits(text)[5:].flip(0))


def test_a_whole_text(pair: Pair) -> None:
    for text in pair.texts:
        driver = pair.driver()
        _, [got] = driver.read((driver.start(), text))
        assert_close(got, pair.outputs(text))


def test_a_text_in_chunks_beside_others(pair: Pair) -> None:
    """The last token of a chunk is the first of the next: the decoder has not read it yet."""
    order = random.Random(1)
    text, others = pair.texts[3], pair.texts[1:3]
    driver = pair.driver(page_tokens=7)
    sequence, got = driver.start(), list[Tensor]()
    edges = [0, *sorted(order.sample(range(1, len(text) - 1), 5)), len(text) - 1]
    for start, stop in pairwise(edges):
        beside = [(driver.start(), other) for other in others]
        _, parts = driver.read(*beside, (sequence, text[start : stop + 1]))
        got.append(parts[-1])
        for part, other in zip(parts, others, strict=False):
            assert_close(part, pair.outputs(other))
        for other_sequence, _ in beside:
            driver.finish(other_sequence)
    assert_close(torch.cat(got), pair.outputs(text))


def test_chained_guesses(pair: Pair) -> None:
    """Each step is fed the head's own output after its norm: as published, token by token."""
    for text in pair.texts:
        driver = pair.driver(page_tokens=5)
        start, _ = driver.read((driver.start(), text))
        tokens, logits = pair.published.chain(text, CHAIN)
        assert driver.draft(start, CHAIN) == [tokens]
        assert len(set(tokens)) > 3  # else a step that forgets its token would pass
        assert_close(driver.mtp.logits(start.outputs), logits[:1])


def test_guesses_of_several_sequences_at_once(pair: Pair) -> None:
    driver = pair.driver()
    start, _ = driver.read(*((driver.start(), text) for text in pair.texts))
    assert driver.draft(start, CHAIN) == [pair.published.chain(text, CHAIN)[0] for text in pair.texts]


@pytest.mark.parametrize("count", [1, 2])
def test_a_chain_may_be_short(pair: Pair, count: int) -> None:
    driver = pair.driver()
    start, _ = driver.read((driver.start(), pair.texts[1]))
    assert driver.draft(start, count) == [pair.published.chain(pair.texts[1], count)[0]]


@pytest.mark.parametrize("wrong", [0, 4])
def test_what_was_not_accepted_leaves_no_trace(pair: Pair, wrong: int) -> None:
    """After each chain some of its tokens are accepted and one more is drawn, as if nothing was guessed."""
    order = random.Random(2)
    driver = pair.driver(page_tokens=3)
    texts = [list(text) for text in pair.texts[1:3]]
    sequences = [driver.start() for _ in texts]
    unread = [list(text) for text in texts]
    for _ in range(6):
        start, _ = driver.read(*zip(sequences, unread, strict=True), wrong=wrong)
        drafts = driver.draft(start, 6)
        assert drafts == [pair.published.chain(text, 6)[0] for text in texts]
        for place, (text, draft) in enumerate(zip(texts, drafts, strict=True)):
            accepted = draft[: order.randrange(6)]
            drawn = (draft[len(accepted)] + 1) % VOCAB
            unread[place] = [text[-1], *accepted, drawn]
            text += [*accepted, drawn]


def test_only_own_cells_of_the_last_layer_are_written(pair: Pair) -> None:
    driver = pair.driver(page_tokens=5)
    sequence = driver.start()
    start, _ = driver.read((sequence, pair.texts[2]))
    before = [part.clone() for part in (driver.cache.keys, driver.cache.values)]
    driver.draft(start, 4)
    own = {sequence.pages[place // 5] * 5 + place % 5 for place in range(16, 19)}
    for part, was in zip((driver.cache.keys, driver.cache.values), before, strict=True):
        changed = (part.nan_to_num(nan=7.5) != was.nan_to_num(nan=7.5)).flatten(3).any(dim=3).flatten(1)
        assert not bool(changed[:-1].any())
        assert {int(cell) for cell in changed[-1].nonzero()[:, 0]} == own

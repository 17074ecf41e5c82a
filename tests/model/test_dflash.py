"""Drafts of the DFlash2 model against the plain transcription of its equations: the same tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_selector import Draws
from sparkle.model.dflash_weights import load_dflash_weights
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of
from tests.model.driver import CPU
from tests.model.without_values import without_values

SHAPES = {
    "3-layers-kv2": DFlashShape(),
    "1-layer-kv1-all-candidates": DFlashShape(
        num_hidden_layers=1, num_key_value_heads=1, selector_top_k=131, conv_group_size=1, sliding_window=16
    ),
    "5-layers-kv4-wide": DFlashShape(
        num_hidden_layers=5,
        num_key_value_heads=4,
        hidden_size=64,
        head_dim=32,
        conv_group_size=16,
        sliding_window=37,
        rope_theta=1e7,
        target_layer_ids=(8, 0),
        selector_top_k=1,
    ),
}


class Drafting:
    """A draft model beside what each sequence's context should be, in slots that were others' before."""

    def __init__(self, shape: DFlashShape, directory: Path, *, num_slots: int = 4) -> None:
        self.reference = DFlashReference(shape)
        self.reference.save(directory)
        self.config = read_dflash_config(directory, target_of(shape))
        self.model = DFlash(
            self.config,
            load_dflash_weights(directory, self.config, CPU),
            embedding=self.reference.embedding,
            lm_head=self.reference.lm_head,
        )
        self.cache = DFlashCache(self.config, num_slots=num_slots, device=CPU, dtype=torch.float32)
        self.cache.keys.fill_(torch.nan)
        self.cache.values.fill_(torch.nan)
        self._contexts: dict[int, Tensor] = {}
        self._width = self.config.taps_size
        self._order = torch.Generator().manual_seed(5)

    def start(self, slot: int) -> None:
        self.cache.zero_slot(slot)
        self._contexts[slot] = torch.zeros(0, self._width)

    def extend(self, *spans: tuple[int, int, int], spare_rows: int = 0) -> None:
        """Slot, rows and how many of them are kept; the rest, and rows behind the spans, are NaN."""
        parts: list[Tensor] = []
        for _, rows, kept in spans:
            real = torch.randn(kept, self._width, generator=self._order)
            parts += [real, torch.full((rows - kept, self._width), torch.nan)]
        parts.append(torch.full((spare_rows, self._width), torch.nan))
        # an unused place behind the others
        starts = [0]
        for _, rows, _ in spans:
            starts.append(starts[-1] + rows)
        batch = ContextBatch(
            span_starts=torch.tensor([*starts, starts[-1]]),
            slots=torch.tensor([*(slot for slot, _, _ in spans), -1]),
            contexts=torch.tensor([*(len(self._contexts[slot]) for slot, _, _ in spans), 0]),
            kept=torch.tensor([*(kept for _, _, kept in spans), 0]),
        )
        self.model.extend(torch.cat(parts), batch, self.cache)
        for place, (slot, _, _) in enumerate(spans):
            self._contexts[slot] = torch.cat((self._contexts[slot], parts[2 * place]))

    def drafts(self, anchors: dict[int, int], rows: int, draws: Draws | None = None) -> list[list[int]]:
        """The model's drafts by slot, one unused place in front."""
        slots = list(anchors)
        tokens = self.model.propose(
            torch.tensor([0, *anchors.values()]),
            torch.tensor([-1, *slots]),
            torch.tensor([0, *(len(self._contexts[slot]) for slot in slots)]),
            self.cache,
            rows=rows,
            draws=draws,
        )
        assert tokens.shape == (1 + len(slots), rows - 1)
        return [whole(draft) for draft in tokens[1:]]

    def wanted(
        self,
        anchors: dict[int, int],
        rows: int,
        temperatures: Sequence[float] = (0.0,) * 4,
        chances: Sequence[Sequence[float]] = ((),) * 4,
    ) -> list[list[int]]:
        """What the plain equations draft."""
        return [
            self.reference.draft(
                self._contexts[slot], anchor, rows, temperature=temperatures[place], chances=chances[place]
            )
            for place, (slot, anchor) in enumerate(anchors.items())
        ]


def whole(values: Tensor) -> list[int]:
    return [int(value) for value in values]


@pytest.fixture(params=SHAPES, scope="module")
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafting:
    return Drafting(SHAPES[request.param], tmp_path_factory.mktemp("dflash"))


@pytest.mark.parametrize("rows", range(2, 17))
def test_every_width_drafts_the_tokens_of_the_plain_equations(drafting: Drafting, rows: int) -> None:
    window = drafting.config.window
    order = random.Random(rows)
    # none, one, just short of the window, just past it, and far past it
    for lengths in ((0, 1, window - rows), (window - 1, window, window + 1), (2 * window, 3 * window + 7)):
        anchors = {slot: order.randrange(drafting.config.vocab_size) for slot in range(len(lengths))}
        for slot, length in enumerate(lengths):
            drafting.start(slot)
            drafting.extend((slot, length, length))
        assert drafting.drafts(anchors, rows) == drafting.wanted(anchors, rows)


@pytest.mark.parametrize("rows", [2, 9, 16])
def test_a_drawn_draft_takes_the_tokens_that_its_chances_fall_on(drafting: Drafting, rows: int) -> None:
    """At temperature 0 the likeliest, whatever the chances beside it."""
    order = random.Random(rows)
    lengths = (1, 20, 90, 33)
    for slot, length in enumerate(lengths):
        drafting.start(slot)
        drafting.extend((slot, length, length))
    different = 0
    for _ in range(5):
        anchors = {slot: order.randrange(drafting.config.vocab_size) for slot in range(len(lengths))}
        temperatures = [0.0, *(order.choice((0.3, 1.0, 1.5)) for _ in lengths[1:])]
        chances = [[order.random() * 0.999 for _ in range(rows - 1)] for _ in lengths]
        draws = Draws(
            # of the unused place in front too
            temperatures=torch.tensor([1.0, *temperatures], dtype=torch.float64),
            chances=torch.tensor([chances[0], *chances], dtype=torch.float64),
        )
        drawn = drafting.drafts(anchors, rows, draws)
        assert drawn == drafting.wanted(anchors, rows, temperatures, chances)
        assert drawn[0] == drafting.drafts(anchors, rows)[0]
        different += drawn != drafting.drafts(anchors, rows)
    assert different or drafting.config.candidates == 1


def test_only_kept_rows_enter_the_context(drafting: Drafting) -> None:
    order = random.Random(2)
    drafted: list[list[int]] = []
    for slot in (3, 0, 2):
        drafting.start(slot)
    drafting.extend((3, 5, 5), (0, 40, 40), (2, 1, 1))
    for _ in range(12):
        rows = order.randint(2, 16)
        spans = [
            (slot, rows, order.randint(0, rows)) for slot in order.sample((0, 2, 3), order.randint(1, 3))
        ]
        drafting.extend(*spans, spare_rows=order.randint(0, 3))
        anchors = {slot: order.randrange(drafting.config.vocab_size) for slot in (0, 3, 2)}
        assert drafting.drafts(anchors, rows) == drafting.wanted(anchors, rows)
        drafted += drafting.drafts(anchors, rows)
    # drafts that never change would prove nothing
    assert len({tuple(draft) for draft in drafted}) > len(drafted) // 2


def test_a_prompt_in_chunks_is_as_if_read_at_once(drafting: Drafting) -> None:
    window = drafting.config.window
    drafting.start(1)
    for chunk in (3, window + 5, 2 * window, 1):
        drafting.extend((1, chunk, chunk))
        assert drafting.drafts({1: 7}, 9) == drafting.wanted({1: 7}, 9)


def test_no_two_kept_rows_go_to_one_place(drafting: Drafting) -> None:
    """A GPU would store them in any order."""
    window = drafting.config.window
    batch = ContextBatch(
        span_starts=torch.tensor([0, 3 * window + 5, 3 * window + 5, 4 * window]),
        slots=torch.tensor([2, -1, 0]),
        contexts=torch.tensor([9, 0, 31]),
        kept=torch.tensor([3 * window + 2, 0, 4]),
    )
    positions, cells = drafting.cache.place(batch, 4 * window + 3)
    spare = (drafting.cache.keys.shape[1] - 1) * drafting.cache.keys.shape[2]
    assert drafting.cache.keys.shape[2] == window + 16
    kept = cells[cells < spare]
    assert len(kept) == len(set(whole(kept))) == window + 4
    # the newest of the first span, the first four of the last
    first, last = 9 + 3 * window + 2, 31
    assert whole(positions[cells < spare]) == [*range(first - window, first), *range(last, last + 4)]


def test_a_slot_keeps_nothing_of_the_sequence_before(drafting: Drafting) -> None:
    drafting.start(0)
    drafting.extend((0, 100, 100))
    drafting.start(0)
    assert not drafting.cache.keys[:, 0].any()
    assert not drafting.cache.values[:, 0].any()
    drafting.extend((0, 3, 3))
    assert drafting.drafts({0: 5}, 8) == drafting.wanted({0: 5}, 8)


def test_a_draft_leaves_the_context_as_it_is(drafting: Drafting) -> None:
    drafting.start(0)
    drafting.extend((0, 20, 20))
    window = drafting.config.window  # behind it stand the draft's own rows
    before = drafting.cache.keys[:, 0, :window].clone(), drafting.cache.values[:, 0, :window].clone()
    first = drafting.drafts({0: 9}, 16)
    assert drafting.drafts({0: 9}, 16) == first
    assert torch.equal(before[0], drafting.cache.keys[:, 0, :window])
    assert torch.equal(before[1], drafting.cache.values[:, 0, :window])


def test_a_narrow_draft_sees_nothing_of_a_wider_one_before(drafting: Drafting) -> None:
    drafting.start(0)
    drafting.extend((0, 20, 20))
    drafting.drafts({0: 9}, 16)
    drafting.cache.keys[:, 0, drafting.config.window + 3 :] = torch.nan
    drafting.cache.values[:, 0, drafting.config.window + 3 :] = torch.nan
    assert drafting.drafts({0: 9}, 3) == drafting.wanted({0: 9}, 3)


def test_a_ring_has_the_size_that_it_says(drafting: Drafting) -> None:
    slots = drafting.cache.keys.shape[1]
    assert drafting.cache.bytes == slots * DFlashCache.bytes_per_slot(drafting.config, torch.float32)


@pytest.mark.parametrize("rows", [1, 17])
def test_a_block_of_another_width_is_refused(drafting: Drafting, rows: int) -> None:
    with pytest.raises(ValueError, match=f"rows is {rows} but"):
        drafting.drafts({}, rows)


def test_no_value_of_a_tensor_is_looked_at(drafting: Drafting, tmp_path: Path) -> None:
    """A tensor on the device `meta` has none: looking at one raises. A graph can hold what needs no look."""
    meta = torch.device("meta")
    config = drafting.config
    drafting.reference.save(tmp_path)
    model = DFlash(
        config,
        without_values(load_dflash_weights(tmp_path, config, CPU)),
        embedding=drafting.reference.embedding.to(meta),
        lm_head=drafting.reference.lm_head.to(meta),
    )
    cache = DFlashCache(config, num_slots=3, device=meta, dtype=torch.float32)
    starts = torch.zeros(3, dtype=torch.int64, device=meta)
    batch = ContextBatch(span_starts=starts, slots=starts[1:], contexts=starts[1:], kept=starts[1:])
    model.extend(torch.zeros(10, config.taps_size, device=meta), batch, cache)
    assert model.propose(starts, starts, starts, cache, rows=5).shape == (3, 4)

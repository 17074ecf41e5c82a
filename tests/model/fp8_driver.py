"""Runs sequences through the FP8 decoder as the engine would; weights made from any float32 ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import Pieces, PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_weights import (
    Fp8AttentionWeights,
    Fp8DecoderWeights,
    Fp8DeltaNetWeights,
    Fp8LayerWeights,
    Fp8MtpWeights,
)
from sparkle.model.taps import Taps
from sparkle.model.weights import (
    AttentionWeights,
    DecoderWeights,
    DeltaNetWeights,
    LayerWeights,
    MtpWeights,
)


@dataclass(slots=True)
class Running:
    """One sequence: what is kept of it and how much of that is still in the window."""

    slot: int
    pages: list[int] = field(default_factory=list[int])
    computed: int = 0
    window: int = 0


class Fp8Driver:
    """Slots and pages are handed out in a random order and dirty: unwritten ones must never matter."""

    def __init__(
        self,
        decoder: Fp8Decoder,
        config: ModelConfig,
        *,
        device: torch.device,
        page_tokens: int = 16,
        num_tokens: int = 1024,
        num_slots: int = 10,
        seed: int = 0,
    ) -> None:
        num_pages = -(-num_tokens // page_tokens)
        self._decoder = decoder
        self._device = device
        self.cache = Fp8Cache(
            config, num_pages=num_pages, page_tokens=page_tokens, num_slots=num_slots, device=device
        )
        for part in (self.cache.keys, self.cache.values):
            part.view(torch.uint8).fill_(0x7F)  # e4m3's NaN
        order = random.Random(seed)
        self._free_pages = order.sample(range(num_pages), num_pages)
        self._free_slots = order.sample(range(num_slots), num_slots)

    def start(self) -> Running:
        """A sequence with no tokens."""
        slot = self._free_slots.pop()
        self.cache.zero_slot(slot)
        return Running(slot)

    def finish(self, sequence: Running) -> None:
        """Give slot and pages back as they are, so that the next owner meets them dirty."""
        self._free_slots.insert(0, sequence.slot)
        self._free_pages[:0] = sequence.pages

    def read(
        self,
        *spans: tuple[Running, Sequence[int]],
        width: int | None = None,
        taps: Taps | None = None,
    ) -> list[Tensor]:
        """Chunks of prompts in one pass, maybe in pieces of `width`; float32 [tokens, vocab] for each."""
        lengths = [len(tokens) for _, tokens in spans]
        logits = self.read_rows(*spans, rows=range(sum(lengths)), width=width, taps=taps)
        return list(logits.split_with_sizes(lengths))

    def read_rows(
        self,
        *spans: tuple[Running, Sequence[int]],
        rows: Sequence[int],
        width: int | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """The same for the logits of some rows of the pass, float32 [rows, vocab]."""
        pending = [sequence for sequence, _ in spans if sequence.window]
        if pending:
            self._decoder.fold(
                self._ints([sequence.slot for sequence in pending]),
                self._ints([sequence.window for sequence in pending]),
                self.cache,
            )
        starts, positions, cells = self._places(spans)
        batch = PromptBatch(
            token_ids=self._ints([token for _, tokens in spans for token in tokens]),
            positions=self._ints(positions).repeat(3, 1),
            cells=self._ints(cells),
            span_starts=self._ints(starts),
            slots=self._ints([sequence.slot for sequence, _ in spans]),
            page_tables=self._tables([sequence for sequence, _ in spans]),
            logit_rows=self._ints(rows),
            contexts=tuple(sequence.computed for sequence, _ in spans),
            lengths=tuple(len(tokens) for _, tokens in spans),
            pieces=None if width is None else self._pieces(spans, width),
        )
        logits = self._read(batch, taps)
        for sequence, tokens in spans:
            sequence.computed += len(tokens)
            sequence.window = 0
        return logits

    def verify(
        self,
        *spans: tuple[Running, Sequence[int]],
        width: int,
        spare: int = 0,
        keep: Sequence[int] = (),
        taps: Taps | None = None,
    ) -> list[Tensor]:
        """A pass of a few tokens each, of which `keep` (else all) stay; `spare` unused places."""
        starts, positions, cells = self._places(spans)
        places = len(spans) + spare
        rows = places * width
        padding = rows - starts[-1]
        batch = VerifyBatch(
            token_ids=self._ints([*(token for _, tokens in spans for token in tokens), *[0] * padding]),
            positions=self._ints([*positions, *[0] * padding]).repeat(3, 1),
            cells=self._ints([*cells, *[-1] * padding]),
            span_starts=self._ints([*starts, *[starts[-1]] * spare]),
            slots=self._ints([*(sequence.slot for sequence, _ in spans), *[-1] * spare]),
            contexts=self._ints([*(sequence.computed for sequence, _ in spans), *[0] * spare]),
            page_tables=self._tables([sequence for sequence, _ in spans], spare),
            accepted=self._ints([*(sequence.window for sequence, _ in spans), *[0] * spare]),
            width=width,
        )
        logits = self._verify(batch, taps)
        lengths = [len(tokens) for _, tokens in spans]
        for (sequence, _), kept in zip(spans, keep or lengths, strict=True):
            sequence.computed += kept
            sequence.window = kept
        return list(logits[: starts[-1]].split_with_sizes(lengths))

    def _read(self, batch: PromptBatch, taps: Taps | None) -> Tensor:
        return self._decoder.read(batch, self.cache, taps)

    def _verify(self, batch: VerifyBatch, taps: Taps | None) -> Tensor:
        return self._decoder.verify(batch, self.cache, taps)

    def _places(
        self, spans: Sequence[tuple[Running, Sequence[int]]]
    ) -> tuple[list[int], list[int], list[int]]:
        """Span starts, and each row's position and cell; pages are added where they lack."""
        starts, positions, cells = [0], list[int](), list[int]()
        size = self.cache.page_tokens
        for sequence, tokens in spans:
            stop = sequence.computed + len(tokens)
            missing = max(0, -(-stop // size) - len(sequence.pages))
            sequence.pages += [self._free_pages.pop() for _ in range(missing)]
            starts.append(starts[-1] + len(tokens))
            for place in range(sequence.computed, stop):
                positions.append(place)
                cells.append(sequence.pages[place // size] * size + place % size)
        return starts, positions, cells

    def _pieces(self, spans: Sequence[tuple[Running, Sequence[int]]], width: int) -> Pieces:
        """The spans in pieces, and one unused piece."""
        starts, contexts, owners = [0], list[int](), list[Running]()
        for sequence, tokens in spans:
            for start in range(0, len(tokens), width):
                starts.append(starts[-1] + min(width, len(tokens) - start))
                contexts.append(sequence.computed + start)
                owners.append(sequence)
        return Pieces(
            starts=self._ints([*starts, starts[-1]]),
            contexts=self._ints([*contexts, 0]),
            page_tables=self._tables(owners, spare=1),
            width=width,
        )

    def _tables(self, sequences: Sequence[Running], spare: int = 0) -> Tensor:
        # one entry more than any sequence needs, so that there is padding in every row
        width = 1 + max(len(sequence.pages) for sequence in sequences)
        rows = [sequence.pages + [-1] * (width - len(sequence.pages)) for sequence in sequences]
        table = [*rows, *[[-1] * width] * spare]
        return torch.tensor(table, dtype=torch.int32, device=self._device)

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)


def quantised(weights: DecoderWeights, device: torch.device) -> Fp8DecoderWeights:
    """The FP8 form of float32 weights."""

    def blocks(matrix: Tensor) -> ops.Fp8Blocks:
        return ops.quantise_blocks(matrix.to(device))

    def floats(vector: Tensor) -> Tensor:
        return vector.to(device)

    def mixer(given: AttentionWeights | DeltaNetWeights) -> Fp8AttentionWeights | Fp8DeltaNetWeights:
        if isinstance(given, AttentionWeights):
            return Fp8AttentionWeights(
                qkvg=blocks(given.qkvg),
                query_norm=floats(given.query_norm),
                key_norm=floats(given.key_norm),
                out=blocks(given.out),
            )
        return Fp8DeltaNetWeights(
            qkvz=blocks(given.qkvz),
            ba=given.ba.to(device, torch.bfloat16),
            conv=floats(given.conv),
            gates=ops.GdnGates(a_log=floats(given.a_log), dt_bias=floats(given.dt_bias)),
            norm=floats(given.norm),
            out=blocks(given.out),
        )

    def layer(given: LayerWeights) -> Fp8LayerWeights:
        return Fp8LayerWeights(
            input_norm=floats(given.input_norm),
            mixer=mixer(given.mixer),
            mlp_norm=floats(given.mlp_norm),
            gate_up=blocks(given.gate_up),
            down=blocks(given.down),
        )

    def head(given: MtpWeights) -> Fp8MtpWeights:
        return Fp8MtpWeights(
            embedding_norm=floats(given.embedding_norm),
            hidden_norm=floats(given.hidden_norm),
            joined=blocks(given.joined),
            layer=layer(given.layer),
            norm=floats(given.norm),
        )

    return Fp8DecoderWeights(
        embedding=weights.embedding.to(device, torch.bfloat16),
        layers=tuple(layer(given) for given in weights.layers),
        norm=floats(weights.norm),
        lm_head=blocks(weights.lm_head),
        mtp=None if weights.mtp is None else head(weights.mtp),
    )

"""The 27B model with random weights, conversations of any length in its cache, and passes over them.

Knows no timing. Cached keys and values are random bytes of ordinary size, so that no softmax is degenerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.floors import Floors
from sparkle.engine.transfer import pack
from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_weights import Fp8DecoderWeights, tensor_bytes
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b

PAGE_TOKENS = 64
CUDA = torch.device("cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A decoder, its cache of `slots` conversations of at most `max_tokens`, and what is read in a pass."""

    config: ModelConfig
    decoder: Fp8Decoder
    cache: Fp8Cache
    max_tokens: int
    weight_bytes: int
    """What a pass reads: not the embedding, of which it takes a few rows, nor the draft head."""

    @classmethod
    def load(cls, *, slots: int, max_tokens: int) -> Loaded:
        """Random weights; conversation i has slot i and pages of its own, in a shuffled order."""
        config = shape_27b()
        weights = random_fp8_weights(config, CUDA, seed=7)
        return cls.of(config, weights, slots=slots, max_tokens=max_tokens)

    @classmethod
    def of(cls, config: ModelConfig, weights: Fp8DecoderWeights, *, slots: int, max_tokens: int) -> Loaded:
        """The same with given weights."""
        ops.divide_memory_alike()  # as the engine does
        pages = -(-max_tokens // PAGE_TOKENS)
        cache = Fp8Cache(
            config, num_pages=slots * pages, page_tokens=PAGE_TOKENS, num_slots=slots, device=CUDA
        )
        return cls(
            config=config,
            decoder=Fp8Decoder(config, weights),
            cache=cache,
            max_tokens=max_tokens,
            weight_bytes=tensor_bytes((weights.layers, weights.norm, weights.lm_head)),
        )

    def page_tables(self, sequences: int) -> Tensor:
        """int32 [sequences, pages of the longest], each page once."""
        pages = -(-self.max_tokens // PAGE_TOKENS)
        count = self.cache.keys.shape[1]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
        return order[: sequences * pages].view(sequences, pages).int().to(CUDA)

    def fill(self) -> None:
        """Ordinary keys, values and states in place of zeros."""
        for part in (self.cache.keys, self.cache.values):
            for layer in part:
                # bytes 0x20 to 0x3f and their negatives: 0.03 to 1.9
                layer.view(torch.uint8).random_(0x20, 0x40).bitwise_or_(
                    torch.randint(0, 2, layer.shape, dtype=torch.uint8, device=CUDA) << 7
                )
        for memory in self.cache.memories:
            memory.states.normal_(std=0.1)
            memory.inputs.normal_()
            memory.columns.normal_()
            memory.keys.normal_(std=128**-0.5)
            memory.writes.normal_(std=0.1)
            memory.log_decays.fill_(-0.1)

    def verify_batch(self, sequences: int, width: int, context: int) -> VerifyBatch:
        """`width` new tokens of each, all but one of the last pass's kept."""
        rows = sequences * width
        places = torch.arange(context, context + width, device=CUDA).repeat(sequences)
        tables = self.page_tables(sequences)
        return VerifyBatch(
            token_ids=torch.randint(0, self.config.vocab_size, (rows,), device=CUDA),
            positions=places.repeat(3, 1),
            cells=_cells(tables.repeat_interleave(width, 0), places),
            span_starts=torch.arange(0, rows + 1, width, device=CUDA),
            slots=torch.arange(sequences, device=CUDA),
            contexts=torch.full((sequences,), context, device=CUDA),
            page_tables=tables,
            accepted=torch.full((sequences,), max(1, width - 1), device=CUDA),
            width=width,
        )

    def prompt_batch(
        self, slot: int, start: int, tokens: Tensor, tables: Tensor, *, logit_rows: Sequence[int]
    ) -> PromptBatch:
        """One chunk of one conversation's prompt."""
        rows = tokens.shape[0]
        places = torch.arange(start, start + rows, device=CUDA)
        table = tables[slot : slot + 1]
        # as the engine does it: a copy from ordinary memory would wait for the chunk before
        span_starts, slots, wanted = pack(([0, rows], [slot], list(logit_rows)), CUDA)
        return PromptBatch(
            token_ids=tokens,
            positions=places.repeat(3, 1),
            cells=_cells(table.expand(rows, -1), places),
            span_starts=span_starts,
            slots=slots,
            page_tables=table,
            logit_rows=wanted,
            contexts=(start,),
            lengths=(rows,),
        )

    def read_prompt(self, slot: int, tokens: Tensor, tables: Tensor, *, chunk_tokens: int) -> Tensor:
        """A whole prompt in chunks, on a wiped slot; logits float32 [1, vocab] of its last token."""
        self.cache.zero_slot(slot)
        logits = torch.empty(0)
        count = tokens.shape[0]
        for start in range(0, count, chunk_tokens):
            part = tokens[start : start + chunk_tokens]
            rows = [part.shape[0] - 1] if start + chunk_tokens >= count else []
            batch = self.prompt_batch(slot, start, part, tables, logit_rows=rows)
            logits = self.decoder.read(batch, self.cache)
        return logits

    @property
    def floors(self) -> Floors:
        """The least that its passes and prompts need."""
        return Floors(self.config, self.weight_bytes)

    def pass_bytes(self, sequences: int, context: int) -> float:
        """The least that a pass moves: weights, keys and values once, states in and out."""
        return self.floors.pass_bytes(sequences, context)


def _cells(tables: Tensor, places: Tensor) -> Tensor:
    """page_tables int32 [T, pages] and places int64 [T] to cells int64 [T]."""
    pages = tables.gather(1, (places // PAGE_TOKENS)[:, None])[:, 0].long()
    return pages * PAGE_TOKENS + places % PAGE_TOKENS

"""The least that an H200 needs for a pass and for a prompt of a model in FP8. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass

from bench.gpu_timing import FP8_FLOPS, READ_BYTES_PER_S
from sparkle.model.config import LayerType, ModelConfig

BF16_FLOPS = 0.989e15
"""The data sheet's dense bf16 rate."""
STATE_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Floors:
    """Bytes over the bandwidth that a plain reduction reaches, operations over the data sheet's rates."""

    config: ModelConfig
    weight_bytes: int
    """What a pass reads: not the embedding, of which it takes a few rows, nor the draft head."""

    def pass_bytes(self, sequences: int, context: int) -> float:
        """The least that a pass moves: weights, keys and values once, states in and out."""
        config = self.config
        kv = 2 * config.layer_types.count(LayerType.FULL) * config.num_kv_heads * config.head_dim
        state = config.linear_num_value_heads * config.linear_key_dim * config.linear_value_dim
        states = STATE_ITEM_BYTES * config.layer_types.count(LayerType.LINEAR) * state
        return self.weight_bytes + sequences * (context * kv + 2 * states)

    def pass_s(self, sequences: int, context: int) -> float:
        """A pass of so many sequences with so many tokens behind each."""
        return self.pass_bytes(sequences, context) / READ_BYTES_PER_S

    def prompt_s(self, tokens: int) -> float:
        """Products over the FP8 rate, causal attention over the bf16 rate; a pass over weights at least."""
        config = self.config
        # one scale of four bytes stands beside 16,384 elements: bytes are elements but for 0.02 %
        products = 2.0 * (self.weight_bytes - config.vocab_size * config.hidden_size) * tokens
        full = config.layer_types.count(LayerType.FULL)
        attention = 2.0 * config.num_heads * config.head_dim * tokens**2 * full
        return max(products / FP8_FLOPS + attention / BF16_FLOPS, self.pass_s(1, 0))

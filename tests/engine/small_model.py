"""A decoder with random weights, small enough to run in milliseconds, in the real architecture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.decoder import Decoder
from sparkle.model.weights import AttentionWeights, DecoderWeights, DeltaNetWeights, LayerWeights, MtpWeights
from sparkle.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 256


def small_config(vocab_size: int, end_tokens: tuple[int, ...]) -> ModelConfig:
    """Four layers, every second one of full attention, two query heads a key head."""
    return ModelConfig(
        name="small",
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=64,
        layer_types=(LayerType.LINEAR, LayerType.FULL) * 2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rotary_dim=8,
        rope_theta=10_000.0,
        mrope_section=(2, 1, 1),
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_dim=8,
        linear_value_dim=8,
        conv_width=4,
        rms_norm_eps=1e-6,
        max_context_tokens=CONTEXT_TOKENS,
        end_tokens=end_tokens,
    )


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.id_of(token)
    assert found is not None
    return found


def config_for(tokenizer: Tokenizer) -> ModelConfig:
    """The small model's sizes with this tokenizer's vocabulary, padded, and the real model's end tokens."""
    ends = (id_of(tokenizer, "<|im_end|>"), id_of(tokenizer, "<|endoftext|>"))
    return small_config(tokenizer.vocab_size + 7, ends)


class _Random:
    """Seeded weights of about the size that keeps every layer's output alive."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=self._generator) * scale / math.sqrt(columns)

    def vector(self, size: int, scale: float = 0.1) -> Tensor:
        return torch.randn(size, generator=self._generator) * scale


def small_weights(config: ModelConfig, seed: int = 0) -> DecoderWeights:
    """Float32 weights for `config`. The head is wide enough that its choices are not near-ties."""
    random = _Random(seed)
    return DecoderWeights(
        embedding=random.matrix(config.vocab_size, config.hidden_size, math.sqrt(config.hidden_size)),
        layers=tuple(_layer(config, kind, random) for kind in config.layer_types),
        norm=random.vector(config.hidden_size),
        lm_head=random.matrix(config.vocab_size, config.hidden_size, 3.0),
        mtp=_mtp(config, random) if config.has_mtp else None,
    )


def _mtp(config: ModelConfig, random: _Random) -> MtpWeights:
    hidden = config.hidden_size
    return MtpWeights(
        embedding_norm=random.vector(hidden),
        hidden_norm=random.vector(hidden),
        joined=random.matrix(hidden, 2 * hidden),
        layer=_layer(config, LayerType.FULL, random),
        norm=random.vector(hidden),
    )


def _layer(config: ModelConfig, kind: LayerType, random: _Random) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    return LayerWeights(
        input_norm=random.vector(hidden),
        mixer=_attention(config, random) if kind is LayerType.FULL else _delta_net(config, random),
        mlp_norm=random.vector(hidden),
        gate_up=random.matrix(2 * inner, hidden),
        down=random.matrix(hidden, inner),
    )


def _attention(config: ModelConfig, random: _Random) -> AttentionWeights:
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    return AttentionWeights(
        qkvg=random.matrix(2 * query_size + 2 * kv_size, config.hidden_size),
        query_norm=random.vector(config.head_dim),
        key_norm=random.vector(config.head_dim),
        out=random.matrix(config.hidden_size, query_size),
    )


def _delta_net(config: ModelConfig, random: _Random) -> DeltaNetWeights:
    heads, channels, value_size = (
        config.linear_num_value_heads,
        config.conv_channels,
        config.linear_value_size,
    )
    return DeltaNetWeights(
        qkvz=random.matrix(channels + value_size, config.hidden_size),
        ba=random.matrix(2 * heads, config.hidden_size),
        conv=random.matrix(channels, config.conv_width),
        a_log=random.vector(heads, 0.5),
        dt_bias=random.vector(heads, 0.5),
        norm=1.0 + random.vector(config.linear_value_dim),
        out=random.matrix(config.hidden_size, value_size),
    )


def small_decoder(tokenizer: Tokenizer) -> Decoder:
    """The small model over this tokenizer's vocabulary."""
    config = config_for(tokenizer)
    return Decoder(config, small_weights(config))

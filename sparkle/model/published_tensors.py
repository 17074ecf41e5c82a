"""The tensors of the published FP8 checkpoint: name, dtype, shape, and what random ones are drawn from.

One shard a layer, one for the draft head and one for the rest. Knows no bytes and no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkle.model import random_values
from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.inventory import MTP_PREFIX, NESTED_PREFIX, SCALE_SUFFIX
from sparkle.model.random_values import Values

BLOCK = 128
"""Rows and columns that share one scale."""


@dataclass(frozen=True, slots=True)
class PublishedTensor:
    """One tensor of the checkpoint."""

    name: str
    dtype: str
    """By its name in a safetensors header."""

    shape: tuple[int, ...]
    values: Values


def published_shards(config: ModelConfig) -> dict[str, list[PublishedTensor]]:
    """All tensors by the name of their file, the largest file first."""
    shards = {"outside.safetensors": list(_outside(config))}
    if config.has_mtp:
        shards["mtp.safetensors"] = list(_mtp(config))
    for number, kind in enumerate(config.layer_types):
        shards[f"layers-{number}.safetensors"] = list(_layer(config, f"{NESTED_PREFIX}layers.{number}", kind))
    return shards


def _outside(config: ModelConfig) -> Iterator[PublishedTensor]:
    shape = (config.vocab_size, config.hidden_size)
    yield PublishedTensor(
        f"{NESTED_PREFIX}embed_tokens.weight", "BF16", shape, random_values.embedding_values()
    )
    yield PublishedTensor("lm_head.weight", "BF16", shape, random_values.matrix_values(config.hidden_size))
    yield _norm(f"{NESTED_PREFIX}norm", config.hidden_size)


def _mtp(config: ModelConfig) -> Iterator[PublishedTensor]:
    hidden = config.hidden_size
    for module in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield _norm(f"{MTP_PREFIX}{module}", hidden)
    values = random_values.matrix_values(2 * hidden)
    yield PublishedTensor(f"{MTP_PREFIX}fc.weight", "BF16", (hidden, 2 * hidden), values)
    yield from _layer(config, f"{MTP_PREFIX}layers.0", LayerType.FULL)


def _layer(config: ModelConfig, prefix: str, kind: LayerType) -> Iterator[PublishedTensor]:
    hidden, inner = config.hidden_size, config.intermediate_size
    yield _norm(f"{prefix}.input_layernorm", hidden)
    yield _norm(f"{prefix}.post_attention_layernorm", hidden)
    yield from _quantised(f"{prefix}.mlp.gate_proj", inner, hidden)
    yield from _quantised(f"{prefix}.mlp.up_proj", inner, hidden)
    yield from _quantised(f"{prefix}.mlp.down_proj", hidden, inner, added=True)
    if kind is LayerType.FULL:
        yield from _attention(config, f"{prefix}.self_attn")
    else:
        yield from _delta_net(config, f"{prefix}.linear_attn")


def _attention(config: ModelConfig, prefix: str) -> Iterator[PublishedTensor]:
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    yield from _quantised(f"{prefix}.q_proj", 2 * heads, hidden)
    yield from _quantised(f"{prefix}.k_proj", kv_heads, hidden)
    yield from _quantised(f"{prefix}.v_proj", kv_heads, hidden)
    yield from _quantised(f"{prefix}.o_proj", hidden, heads, added=True)
    yield _norm(f"{prefix}.q_norm", config.head_dim)
    yield _norm(f"{prefix}.k_norm", config.head_dim)


def _delta_net(config: ModelConfig, prefix: str) -> Iterator[PublishedTensor]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    yield from _quantised(f"{prefix}.in_proj_qkv", config.conv_channels, hidden)
    yield from _quantised(f"{prefix}.in_proj_z", config.linear_value_size, hidden)
    yield from _quantised(f"{prefix}.out_proj", hidden, config.linear_value_size, added=True)
    for name in ("in_proj_a", "in_proj_b"):
        values = random_values.matrix_values(hidden)
        yield PublishedTensor(f"{prefix}.{name}.weight", "BF16", (heads, hidden), values)
    taps = (config.conv_channels, 1, config.conv_width)
    yield PublishedTensor(f"{prefix}.conv1d.weight", "BF16", taps, random_values.convolution_values())
    yield PublishedTensor(f"{prefix}.A_log", "F32", (heads,), random_values.a_log_values())
    yield PublishedTensor(f"{prefix}.dt_bias", "BF16", (heads,), random_values.dt_bias_values())
    width = (config.linear_value_dim,)
    yield PublishedTensor(f"{prefix}.norm.weight", "F32", width, random_values.gated_norm_values())


def _norm(module: str, width: int) -> PublishedTensor:
    return PublishedTensor(f"{module}.weight", "BF16", (width,), random_values.norm_values())


def _quantised(module: str, rows: int, columns: int, *, added: bool = False) -> Iterator[PublishedTensor]:
    name = f"{module}.weight"
    yield PublishedTensor(name, "F8_E4M3", (rows, columns), random_values.fp8_values())
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    scales = random_values.scale_values(columns, added=added)
    yield PublishedTensor(name + SCALE_SUFFIX, "BF16", blocks, scales)

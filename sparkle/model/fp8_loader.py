"""A checkpoint's tensors to the weights of the FP8 decoder, each accounted for. Knows no forward pass.

The headers give a plan of all bytes, which are then read straight to their places: fp8_plan, bulk_read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from sparkle.model.bulk_read import copy_all
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_plan import Fp8Plan, Rows
from sparkle.model.fp8_weights import (
    Fp8AttentionWeights,
    Fp8DecoderWeights,
    Fp8DeltaNetWeights,
    Fp8LayerWeights,
    Fp8MtpWeights,
    empty_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8LoadReport:
    """What became of a checkpoint's tensors."""

    quantised: int
    """Matrices that were not in the FP8 block form: lm_head and mtp.fc, or all of them."""

    skipped: tuple[str, ...]
    """Names of the tensors left in the file: the vision tower, and a draft head that is not asked for."""

    read_bytes: int


def load_fp8_weights(
    directory: Path, config: ModelConfig, device: torch.device
) -> tuple[Fp8DecoderWeights, Fp8LoadReport]:
    """The weights of the checkpoint in `directory`, as `config` (of the same directory) wants them.

    Values are those of the files, bit for bit, but for matrices that are not stored in FP8 blocks: they are
    quantised as `ops.quantise_blocks` does, and an embedding in float32 is rounded to bfloat16. A draft head
    is optional: None where the checkpoint is a copy without it.

    Raises TensorMismatch naming a tensor that is missing, unknown, of another shape or of another dtype,
    UnsupportedModel where the sizes do not make whole blocks, and CheckpointError where a file is missing or
    damaged, or a vector or scales are not finite. The headers are checked before any tensor is read.
    """
    plan = Fp8Plan(directory)
    config = dataclasses.replace(config, has_mtp=config.has_mtp and plan.has_mtp)
    weights = empty_weights(config, device)
    plan.floats("embed_tokens.weight", weights.embedding)
    for number, layer in enumerate(weights.layers):
        _layer(plan, config, f"layers.{number}", layer)
    plan.floats("norm.weight", weights.norm)
    plan.matrix("lm_head.weight", weights.lm_head)
    if weights.mtp is not None:
        _mtp(plan, config, weights.mtp)
    skipped = plan.skipped()
    read_bytes = copy_all(plan.parts, device)
    plan.require_finite()
    return weights, Fp8LoadReport(quantised=plan.quantised, skipped=skipped, read_bytes=read_bytes)


def _mtp(plan: Fp8Plan, config: ModelConfig, weights: Fp8MtpWeights) -> None:
    plan.floats("mtp.pre_fc_norm_embedding.weight", weights.embedding_norm)
    plan.floats("mtp.pre_fc_norm_hidden.weight", weights.hidden_norm)
    plan.matrix("mtp.fc.weight", weights.joined)
    _layer(plan, config, "mtp.layers.0", weights.layer)
    plan.floats("mtp.norm.weight", weights.norm)


def _layer(plan: Fp8Plan, config: ModelConfig, layer: str, weights: Fp8LayerWeights) -> None:
    inner = config.intermediate_size
    plan.floats(f"{layer}.input_layernorm.weight", weights.input_norm)
    if isinstance(weights.mixer, Fp8AttentionWeights):
        _attention(plan, config, f"{layer}.self_attn", weights.mixer)
    else:
        _delta_net(plan, config, f"{layer}.linear_attn", weights.mixer)
    plan.floats(f"{layer}.post_attention_layernorm.weight", weights.mlp_norm)
    plan.matrix(f"{layer}.mlp.gate_proj.weight", weights.gate_up, Rows(count=inner))
    plan.matrix(f"{layer}.mlp.up_proj.weight", weights.gate_up, Rows(count=inner, joined=inner))
    plan.matrix(f"{layer}.mlp.down_proj.weight", weights.down)


def _attention(plan: Fp8Plan, config: ModelConfig, prefix: str, weights: Fp8AttentionWeights) -> None:
    heads, width = config.num_heads, config.head_dim
    keys, kv_size = heads * width, config.num_kv_heads * width
    gates = keys + 2 * kv_size
    # stored head by head, queries then gates; used as all queries, then all gates
    queries_and_gates = [
        Rows(count=width, stored=(2 * head + part) * width, joined=first + head * width)
        for head in range(heads)
        for part, first in enumerate((0, gates))
    ]
    plan.matrix(f"{prefix}.q_proj.weight", weights.qkvg, *queries_and_gates)
    plan.matrix(f"{prefix}.k_proj.weight", weights.qkvg, Rows(count=kv_size, joined=keys))
    plan.matrix(f"{prefix}.v_proj.weight", weights.qkvg, Rows(count=kv_size, joined=keys + kv_size))
    plan.floats(f"{prefix}.q_norm.weight", weights.query_norm)
    plan.floats(f"{prefix}.k_norm.weight", weights.key_norm)
    plan.matrix(f"{prefix}.o_proj.weight", weights.out)


def _delta_net(plan: Fp8Plan, config: ModelConfig, prefix: str, weights: Fp8DeltaNetWeights) -> None:
    channels, value_size = config.conv_channels, config.linear_value_size
    heads = config.linear_num_value_heads
    plan.matrix(f"{prefix}.in_proj_qkv.weight", weights.qkvz, Rows(count=channels))
    plan.matrix(f"{prefix}.in_proj_z.weight", weights.qkvz, Rows(count=value_size, joined=channels))
    plan.floats(f"{prefix}.in_proj_b.weight", weights.ba[:heads])
    plan.floats(f"{prefix}.in_proj_a.weight", weights.ba[heads:])
    plan.floats(f"{prefix}.conv1d.weight", weights.conv, shape=(channels, 1, config.conv_width))
    plan.floats(f"{prefix}.A_log", weights.gates.a_log)
    plan.floats(f"{prefix}.dt_bias", weights.gates.dt_bias)
    plan.floats(f"{prefix}.norm.weight", weights.norm)
    plan.matrix(f"{prefix}.out_proj.weight", weights.out)

"""A checkpoint's tensors to the decoder's weights, every tensor accounted for. Knows no forward pass.

Projections that read the same rows are joined, so a layer multiplies fewer, larger matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.tensor_files import TensorFiles
from sparkle.model.tensor_loader import TensorLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Gated full attention; H query heads and Hkv key and value heads of width D."""

    qkvg: Tensor  # [(2 H + 2 Hkv) D, hidden]: queries, keys, values, gates
    query_norm: Tensor  # float32 [D]
    key_norm: Tensor  # float32 [D]
    out: Tensor  # [hidden, H D]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetWeights:
    """Gated DeltaNet; C convolution channels, Hv value heads of width V."""

    qkvz: Tensor  # [C + Hv V, hidden]: queries, keys, values, output gates
    ba: Tensor  # [2 Hv, hidden]: write strengths, decays
    conv: Tensor  # float32 [C, taps]
    a_log: Tensor  # float32 [Hv]
    dt_bias: Tensor  # float32 [Hv]
    norm: Tensor  # float32 [V]
    out: Tensor  # [hidden, Hv V]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: Tensor  # float32 [hidden]
    mixer: AttentionWeights | DeltaNetWeights
    mlp_norm: Tensor  # float32 [hidden]
    gate_up: Tensor  # [2 intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """The checkpoint's own draft head; embedding and output matrix are the decoder's."""

    embedding_norm: Tensor  # float32 [hidden], of a token's embedding
    hidden_norm: Tensor  # float32 [hidden], of the decoder's output
    joined: Tensor  # [hidden, 2 hidden]: columns of the embedding, then of the output
    layer: LayerWeights  # of full attention
    norm: Tensor  # float32 [hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """The decoder; matrices in the dtype asked for, vectors and convolutions in float32."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # float32 [hidden]
    lm_head: Tensor  # [vocab, hidden]
    mtp: MtpWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of a checkpoint's tensors."""

    dequantised: int
    """Matrices that were in the FP8 block form."""

    skipped: tuple[str, ...]
    """Names of the tensors left in the file: the vision tower, and a draft head that is not asked for."""


def load_weights(
    directory: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[DecoderWeights, LoadReport]:
    """The weights of the checkpoint in `directory`, as `config` (of the same directory) wants them.

    A draft head is optional: None where the checkpoint is a copy without it.

    Raises TensorMismatch naming a tensor that is missing, unknown, of another shape or of another dtype, and
    CheckpointError where a file is missing or damaged.
    """
    loader = TensorLoader(TensorFiles(directory), device=device, dtype=dtype)
    weights = DecoderWeights(
        embedding=loader.matrix("embed_tokens.weight", config.vocab_size, config.hidden_size),
        layers=tuple(
            _layer(loader, config, f"layers.{number}", kind) for number, kind in enumerate(config.layer_types)
        ),
        norm=loader.vector("norm.weight", config.hidden_size),
        lm_head=loader.matrix("lm_head.weight", config.vocab_size, config.hidden_size),
        mtp=_mtp(loader, config) if config.has_mtp and loader.has_mtp else None,
    )
    return weights, LoadReport(skipped=loader.skipped(), dequantised=loader.dequantised)


def _mtp(loader: TensorLoader, config: ModelConfig) -> MtpWeights:
    hidden = config.hidden_size
    return MtpWeights(
        embedding_norm=loader.vector("mtp.pre_fc_norm_embedding.weight", hidden),
        hidden_norm=loader.vector("mtp.pre_fc_norm_hidden.weight", hidden),
        joined=loader.matrix("mtp.fc.weight", hidden, 2 * hidden),
        layer=_layer(loader, config, "mtp.layers.0", LayerType.FULL),
        norm=loader.vector("mtp.norm.weight", hidden),
    )


def _layer(loader: TensorLoader, config: ModelConfig, prefix: str, kind: LayerType) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    return LayerWeights(
        input_norm=loader.vector(f"{prefix}.input_layernorm.weight", hidden),
        mixer=(_attention if kind is LayerType.FULL else _delta_net)(loader, config, prefix),
        mlp_norm=loader.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=torch.cat(
            (
                loader.matrix(f"{prefix}.mlp.gate_proj.weight", inner, hidden),
                loader.matrix(f"{prefix}.mlp.up_proj.weight", inner, hidden),
            )
        ),
        down=loader.matrix(f"{prefix}.mlp.down_proj.weight", hidden, inner),
    )


def _attention(loader: TensorLoader, config: ModelConfig, layer: str) -> AttentionWeights:
    prefix = f"{layer}.self_attn"
    hidden, heads, width = config.hidden_size, config.num_heads, config.head_dim
    kv_size = config.num_kv_heads * width
    # stored head by head, queries then gates; used as all queries, then all gates
    query, gate = (
        loader.matrix(f"{prefix}.q_proj.weight", 2 * heads * width, hidden)
        .view(heads, 2, width, hidden)
        .unbind(1)
    )
    key = loader.matrix(f"{prefix}.k_proj.weight", kv_size, hidden)
    value = loader.matrix(f"{prefix}.v_proj.weight", kv_size, hidden)
    return AttentionWeights(
        qkvg=torch.cat((query.flatten(0, 1), key, value, gate.flatten(0, 1))),
        query_norm=loader.vector(f"{prefix}.q_norm.weight", width),
        key_norm=loader.vector(f"{prefix}.k_norm.weight", width),
        out=loader.matrix(f"{prefix}.o_proj.weight", hidden, heads * width),
    )


def _delta_net(loader: TensorLoader, config: ModelConfig, layer: str) -> DeltaNetWeights:
    prefix = f"{layer}.linear_attn"
    hidden, channels, value_size = config.hidden_size, config.conv_channels, config.linear_value_size
    heads = config.linear_num_value_heads
    return DeltaNetWeights(
        qkvz=torch.cat(
            (
                loader.matrix(f"{prefix}.in_proj_qkv.weight", channels, hidden),
                loader.matrix(f"{prefix}.in_proj_z.weight", value_size, hidden),
            )
        ),
        ba=torch.cat(
            (
                loader.matrix(f"{prefix}.in_proj_b.weight", heads, hidden),
                loader.matrix(f"{prefix}.in_proj_a.weight", heads, hidden),
            )
        ),
        conv=loader.convolution(f"{prefix}.conv1d.weight", channels, config.conv_width),
        a_log=loader.vector(f"{prefix}.A_log", heads),
        dt_bias=loader.vector(f"{prefix}.dt_bias", heads),
        norm=loader.vector(f"{prefix}.norm.weight", config.linear_value_dim),
        out=loader.matrix(f"{prefix}.out_proj.weight", hidden, value_size),
    )

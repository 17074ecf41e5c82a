"""The decoder's weights as a GPU uses them: matrices in FP8 blocks, everything else as it is. Knows no files.

Rows and columns of every matrix are multiples of 128, so that joined matrices have whole blocks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from sparkle.errors import UnsupportedModel
from sparkle.kernels import ops
from sparkle.model.config import LayerType, ModelConfig

CONV_WIDTH = 4
"""Taps that the kernels of the convolution are written for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8AttentionWeights:
    """Gated full attention; H query heads and Hkv key and value heads of width D."""

    qkvg: ops.Fp8Blocks  # [(2 H + 2 Hkv) D, hidden]: queries, keys, values, gates
    query_norm: Tensor  # float32 [D]
    key_norm: Tensor  # float32 [D]
    out: ops.Fp8Blocks  # [hidden, H D]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8DeltaNetWeights:
    """Gated DeltaNet; C convolution channels, Hv value heads of width V."""

    qkvz: ops.Fp8Blocks  # [C + Hv V, hidden]: queries, keys, values, output gates
    ba: Tensor  # bfloat16 [2 Hv, hidden]: write strengths, decays
    conv: Tensor  # float32 [C, taps]
    gates: ops.GdnGates  # float32
    norm: Tensor  # float32 [V]
    out: ops.Fp8Blocks  # [hidden, Hv V]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8LayerWeights:
    """One decoder layer."""

    input_norm: Tensor  # float32 [hidden]
    mixer: Fp8AttentionWeights | Fp8DeltaNetWeights
    mlp_norm: Tensor  # float32 [hidden]
    gate_up: ops.Fp8Blocks  # [2 intermediate, hidden]
    down: ops.Fp8Blocks  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8MtpWeights:
    """The checkpoint's own draft head; embedding and output matrix are the decoder's."""

    embedding_norm: Tensor  # float32 [hidden], of a token's embedding
    hidden_norm: Tensor  # float32 [hidden], of the decoder's output
    joined: ops.Fp8Blocks  # [hidden, 2 hidden]: columns of the embedding, then of the output
    layer: Fp8LayerWeights  # of full attention
    norm: Tensor  # float32 [hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8DecoderWeights:
    """The decoder."""

    embedding: Tensor  # bfloat16 [vocab, hidden]
    layers: tuple[Fp8LayerWeights, ...]
    norm: Tensor  # float32 [hidden]
    lm_head: ops.Fp8Blocks  # [vocab, hidden]
    mtp: Fp8MtpWeights | None = None


def empty_weights(config: ModelConfig, device: torch.device) -> Fp8DecoderWeights:
    """All weights of the model, allocated and unwritten. Raises as `require_whole_blocks`."""
    require_whole_blocks(config)
    make = _Maker(device)
    hidden = config.hidden_size
    return Fp8DecoderWeights(
        embedding=make.narrow(config.vocab_size, hidden),
        layers=tuple(_layer(make, config, kind) for kind in config.layer_types),
        norm=make.floats(hidden),
        lm_head=make.blocks(config.vocab_size, hidden),
        mtp=_mtp(make, config) if config.has_mtp else None,
    )


def require_whole_blocks(config: ModelConfig) -> None:
    """Raises UnsupportedModel, naming the size, where the kernels do not take this model's."""
    block = ops.BLOCK
    for name, value in (
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("num_attention_heads · head_dim", config.num_heads * config.head_dim),
        ("num_key_value_heads · head_dim", config.num_kv_heads * config.head_dim),
        ("linear_num_key_heads · linear_key_head_dim", config.linear_key_size),
    ):
        if value % block:
            raise UnsupportedModel(f"{name} is {value} but FP8 blocks need a multiple of {block}")
    if config.linear_value_dim != block or config.linear_key_dim != block:
        raise UnsupportedModel(
            f"linear heads are {config.linear_key_dim} and {config.linear_value_dim} wide "
            f"but the FP8 kernels need {block}"
        )
    if config.conv_width != CONV_WIDTH:
        raise UnsupportedModel(
            f"linear_conv_kernel_dim is {config.conv_width} but the FP8 kernels need {CONV_WIDTH}"
        )


def tensor_bytes(weights: object) -> int:
    """Size of all tensors in nested dataclasses and tuples of them."""
    if isinstance(weights, Tensor):
        return weights.nbytes
    if isinstance(weights, tuple):
        return sum(tensor_bytes(part) for part in cast("tuple[object, ...]", weights))
    if dataclasses.is_dataclass(weights):
        return sum(tensor_bytes(getattr(weights, field.name)) for field in dataclasses.fields(weights))
    return 0


class _Maker:
    """Unwritten tensors on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def blocks(self, rows: int, columns: int) -> ops.Fp8Blocks:
        scales = (-(-rows // ops.BLOCK), columns // ops.BLOCK)
        return ops.Fp8Blocks(
            torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=self._device), self.floats(*scales)
        )

    def narrow(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device)

    def floats(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._device)


def _mtp(make: _Maker, config: ModelConfig) -> Fp8MtpWeights:
    hidden = config.hidden_size
    return Fp8MtpWeights(
        embedding_norm=make.floats(hidden),
        hidden_norm=make.floats(hidden),
        joined=make.blocks(hidden, 2 * hidden),
        layer=_layer(make, config, LayerType.FULL),
        norm=make.floats(hidden),
    )


def _layer(make: _Maker, config: ModelConfig, kind: LayerType) -> Fp8LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    return Fp8LayerWeights(
        input_norm=make.floats(hidden),
        mixer=_attention(make, config) if kind is LayerType.FULL else _delta_net(make, config),
        mlp_norm=make.floats(hidden),
        gate_up=make.blocks(2 * inner, hidden),
        down=make.blocks(hidden, inner),
    )


def _attention(make: _Maker, config: ModelConfig) -> Fp8AttentionWeights:
    heads = config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    return Fp8AttentionWeights(
        qkvg=make.blocks(2 * heads + 2 * kv_heads, config.hidden_size),
        query_norm=make.floats(config.head_dim),
        key_norm=make.floats(config.head_dim),
        out=make.blocks(config.hidden_size, heads),
    )


def _delta_net(make: _Maker, config: ModelConfig) -> Fp8DeltaNetWeights:
    heads, hidden = config.linear_num_value_heads, config.hidden_size
    return Fp8DeltaNetWeights(
        qkvz=make.blocks(config.conv_channels + config.linear_value_size, hidden),
        ba=make.narrow(2 * heads, hidden),
        conv=make.floats(config.conv_channels, config.conv_width),
        gates=ops.GdnGates(a_log=make.floats(heads), dt_bias=make.floats(heads)),
        norm=make.floats(config.linear_value_dim),
        out=make.blocks(hidden, config.linear_value_size),
    )

"""A DFlash2 directory's tensors to the draft model's weights, each accounted for. Knows no forward pass.

Matrices are float32, or on a GPU in FP8 blocks, into which they are quantised at load. The embedding and the
output matrix are not among them: they are the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sparkle.errors import TensorMismatch, UnsupportedModel
from sparkle.kernels import ops
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.tensor_files import TensorFiles
from sparkle.model.tensor_loader import TensorLoader

SIDES, TAPS = 2, 2
"""Of a convolution: in front of what it wraps and behind it; this row and the row before."""

M = TypeVar("M", bound=Tensor | ops.Fp8Blocks)
"""The form of a matrix [rows, columns]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionWeights(Generic[M]):
    """The two-tap convolutions on both sides of attention, or of the MLP; G groups of channels."""

    base: Tensor  # float32 [sides, taps, hidden]
    dynamic: M  # [sides · taps · G, hidden]: what is added to a group's taps, from the row itself


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashLayerWeights(Generic[M]):
    """One layer; H query heads and Hkv key and value heads of width D.

    All norms of the model are stored less 1, as ops.rms_norm takes them: the files hold factors.
    """

    input_norm: Tensor  # float32 [hidden]
    attention_conv: ConvolutionWeights[M]
    qkv: M  # [(H + 2 Hkv) D, hidden]: queries, keys, values
    query_norm: Tensor  # float32 [D]
    key_norm: Tensor  # float32 [D]
    out: M  # [hidden, H D]
    mlp_norm: Tensor  # float32 [hidden]
    mlp_conv: ConvolutionWeights[M]
    gate_up: M  # [2 intermediate, hidden]
    down: M  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorWeights:
    """What a token adds to the score of the one behind it, by way of `rank` products."""

    predecessors: Tensor  # [vocab, rank]
    successors: Tensor  # [vocab, rank]
    projection: Tensor  # [rank, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashWeights(Generic[M]):
    """The draft model."""

    fuse: M  # [hidden, tapped layers · hidden]
    context_norm: Tensor  # float32 [hidden]
    layers: tuple[DFlashLayerWeights[M], ...]
    norm: Tensor  # float32 [hidden]
    selector: SelectorWeights


def load_dflash_weights(directory: Path, config: DFlashConfig, device: torch.device) -> DFlashWeights[Tensor]:
    """The weights in float32, as `config` (of the same directory) wants them.

    Raises TensorMismatch naming a tensor that is missing, unknown, of another shape or of another dtype, and
    CheckpointError where a file is missing or damaged or a vector is not finite.
    """
    return _load(directory, config, device, torch.float32, lambda matrix: matrix)


def load_fp8_dflash_weights(
    directory: Path, config: DFlashConfig, device: torch.device
) -> DFlashWeights[ops.Fp8Blocks]:
    """The same in FP8 blocks, the selector in bfloat16.

    Raises UnsupportedModel besides, as `require_dflash_blocks`.
    """
    require_dflash_blocks(config)
    # one matrix after another: only one is in both forms at a time
    return _load(directory, config, device, torch.bfloat16, ops.quantise_blocks)


def require_dflash_blocks(config: DFlashConfig) -> None:
    """Raises UnsupportedModel, naming the size, where FP8 blocks do not take this model's."""
    for name, value in (
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("num_attention_heads · head_dim", config.query_size),
        ("num_key_value_heads · head_dim", config.kv_size),
    ):
        if value % ops.BLOCK:
            raise UnsupportedModel(f"{name} is {value} but FP8 blocks need a multiple of {ops.BLOCK}")
    if ops.BLOCK % config.conv_group:
        raise UnsupportedModel(f"conv_group_size is {config.conv_group} but must divide {ops.BLOCK}")
    if config.selector_rank > ops.MOST_NARROW_COLUMNS:
        raise UnsupportedModel(
            f"selector_rank is {config.selector_rank} but must be at most {ops.MOST_NARROW_COLUMNS}"
        )


def fp8_bytes(config: DFlashConfig) -> int:
    """Size of what `load_fp8_dflash_weights` gives and of Fp8DFlash's copy of keys' and values' rows."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = hidden * (config.query_size + 2 * config.kv_size) + config.query_size * hidden
    dynamic = 2 * SIDES * TAPS * config.conv_groups * hidden
    copied = 2 * config.kv_size * hidden
    matrices = config.num_layers * (attention + dynamic + 3 * hidden * inner + copied)
    matrices += config.taps_size * hidden
    # one float32 scale a block
    in_blocks = matrices + 4 * matrices // ops.BLOCK**2
    selector = 2 * (2 * config.vocab_size + hidden) * config.selector_rank
    floats = 4 * (
        config.num_layers * (2 * SIDES * TAPS * hidden + 2 * hidden + 2 * config.head_dim) + 2 * hidden
    )
    return in_blocks + selector + floats


def _load(
    directory: Path,
    config: DFlashConfig,
    device: torch.device,
    dtype: torch.dtype,
    form: Callable[[Tensor], M],
) -> DFlashWeights[M]:
    files = TensorFiles(directory)
    loader = _Loader(TensorLoader(files, device=device, dtype=dtype, prefix=""), config, form)
    hidden, rank = config.hidden_size, config.selector_rank
    weights = DFlashWeights(
        fuse=loader.matrix(config.taps_size, {"fc": hidden}),
        context_norm=loader.norm("hidden_norm", hidden),
        layers=tuple(loader.layer(f"layers.{number}") for number in range(config.num_layers)),
        norm=loader.norm("norm", hidden),
        selector=SelectorWeights(
            predecessors=loader.plain("candidate_selector.predecessor_codebook", config.vocab_size, rank),
            successors=loader.plain("candidate_selector.successor_codebook", config.vocab_size, rank),
            projection=loader.plain("candidate_selector.hidden_projection.weight", rank, hidden),
        ),
    )
    # also what a checkpoint of the target may hold besides: a draft model has neither
    for name in files.skipped():
        raise TensorMismatch(f"{name} is in the checkpoint but not in this model")
    return weights


class _Loader(Generic[M]):
    """The tensors of one directory, matrices in `form`."""

    def __init__(self, tensors: TensorLoader, config: DFlashConfig, form: Callable[[Tensor], M]) -> None:
        self._tensors = tensors
        self._config = config
        self._form = form

    def layer(self, prefix: str) -> DFlashLayerWeights[M]:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return DFlashLayerWeights(
            input_norm=self.norm(f"{prefix}.input_layernorm", hidden),
            attention_conv=self._convolution(f"{prefix}.attention_conv"),
            qkv=self.matrix(
                hidden,
                {
                    f"{attention}.q_proj": config.query_size,
                    f"{attention}.k_proj": config.kv_size,
                    f"{attention}.v_proj": config.kv_size,
                },
            ),
            query_norm=self.norm(f"{attention}.q_norm", config.head_dim),
            key_norm=self.norm(f"{attention}.k_norm", config.head_dim),
            out=self.matrix(config.query_size, {f"{attention}.o_proj": hidden}),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm", hidden),
            mlp_conv=self._convolution(f"{prefix}.mlp_conv"),
            gate_up=self.matrix(hidden, {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}),
            down=self.matrix(inner, {f"{mlp}.down_proj": hidden}),
        )

    def _convolution(self, prefix: str) -> ConvolutionWeights[M]:
        hidden = self._config.hidden_size
        rows = SIDES * TAPS * self._config.conv_groups
        return ConvolutionWeights(
            base=self._tensors.floats(f"{prefix}.base_kernel", SIDES, TAPS, hidden),
            dynamic=self.matrix(hidden, {f"{prefix}.kernel_projection": rows}),
        )

    def matrix(self, columns: int, modules: Mapping[str, int]) -> M:
        """The weights of modules of so many rows each, one below the other."""
        parts = [self.plain(f"{module}.weight", rows, columns) for module, rows in modules.items()]
        return self._form(parts[0] if len(parts) == 1 else torch.cat(parts))

    def plain(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix that is not quantised."""
        return self._tensors.matrix(name, rows, columns)

    def norm(self, module: str, width: int) -> Tensor:
        return self._tensors.vector(f"{module}.weight", width) - 1.0

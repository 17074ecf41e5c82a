"""Every tensor of a DFlash2 directory is accounted for, in float32 and in FP8 blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkle.errors import TensorMismatch, UnsupportedModel
from sparkle.kernels import ops
from sparkle.model.dflash_config import DFlashConfig, read_dflash_config
from sparkle.model.dflash_weights import DFlashWeights, load_dflash_weights, load_fp8_dflash_weights
from tests.model.checkpoint_files import read_tensors, write_tensors
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of
from tests.model.driver import CPU

BLOCKS = DFlashShape(
    hidden_size=128, intermediate_size=256, head_dim=64, num_hidden_layers=2, conv_group_size=16
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    DFlashReference(BLOCKS).save(tmp_path)
    return tmp_path


def load(directory: Path, shape: DFlashShape = BLOCKS) -> DFlashWeights[torch.Tensor]:
    return load_dflash_weights(directory, config_of(directory, shape), CPU)


def config_of(directory: Path, shape: DFlashShape = BLOCKS) -> DFlashConfig:
    return read_dflash_config(directory, target_of(shape))


def test_joined_matrices_hold_their_parts_in_order(directory: Path) -> None:
    stored = read_tensors(directory)
    layer = load(directory).layers[1]
    query, key, value = (stored[f"layers.1.self_attn.{name}_proj.weight"] for name in "qkv")
    gate, up = (stored[f"layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    assert torch.equal(layer.qkv, torch.cat((query, key, value)))
    assert torch.equal(layer.gate_up, torch.cat((gate, up)))
    assert torch.equal(layer.attention_conv.base, stored["layers.1.attention_conv.base_kernel"])
    assert torch.equal(layer.mlp_norm, stored["layers.1.post_attention_layernorm.weight"] - 1)


def test_each_tensor_must_be_there(directory: Path) -> None:
    stored = read_tensors(directory)
    for name in stored:
        write_tensors(directory, {other: tensor for other, tensor in stored.items() if other != name})
        with pytest.raises(TensorMismatch, match=f"^{name} is missing"):
            load(directory)


def test_each_tensor_must_have_its_shape(directory: Path) -> None:
    stored = read_tensors(directory)
    for name, tensor in stored.items():
        write_tensors(directory, {**stored, name: torch.cat((tensor, tensor))})
        with pytest.raises(TensorMismatch, match=f"^{name} has shape"):
            load(directory)


@pytest.mark.parametrize(
    "name", ["layers.2.input_layernorm.weight", "embed_tokens.weight", "lm_head.weight", "mtp.fc.weight"]
)
def test_no_other_tensor_may_be_there(directory: Path, name: str) -> None:
    write_tensors(directory, {**read_tensors(directory), name: torch.ones(2)})
    with pytest.raises(TensorMismatch, match=f"^{name} is in the checkpoint but not in this model"):
        load(directory)


def test_matrices_go_to_fp8_blocks_and_the_selector_to_bfloat16(directory: Path) -> None:
    stored = {name: tensor.bfloat16() for name, tensor in read_tensors(directory).items()}
    write_tensors(directory, stored)
    weights = load_fp8_dflash_weights(directory, config_of(directory), CPU)
    layer = weights.layers[0]
    matrices = {
        "fc.weight": weights.fuse,
        "layers.0.self_attn.o_proj.weight": layer.out,
        "layers.0.mlp.down_proj.weight": layer.down,
        "layers.0.mlp_conv.kernel_projection.weight": layer.mlp_conv.dynamic,
    }
    for name, matrix in matrices.items():
        wanted = ops.quantise_blocks(stored[name])
        assert isinstance(matrix, ops.Fp8Blocks)
        assert torch.equal(matrix.values.view(torch.uint8), wanted.values.view(torch.uint8))
        assert torch.equal(matrix.scales, wanted.scales)
    for name, table in (
        ("predecessor_codebook", weights.selector.predecessors),
        ("successor_codebook", weights.selector.successors),
        ("hidden_projection.weight", weights.selector.projection),
    ):
        assert table.dtype == torch.bfloat16
        assert torch.equal(table, stored[f"candidate_selector.{name}"])
    # a factor near 1 less 1 needs float32
    assert torch.equal(weights.norm + 1, stored["norm.weight"].float())


def test_sizes_that_are_no_whole_blocks_are_named(tmp_path: Path) -> None:
    shape = DFlashShape(hidden_size=128, intermediate_size=256, head_dim=48)
    DFlashReference(shape).save(tmp_path)
    load(tmp_path, shape)
    with pytest.raises(UnsupportedModel, match="num_attention_heads · head_dim is 192 but"):
        load_fp8_dflash_weights(tmp_path, config_of(tmp_path, shape), CPU)

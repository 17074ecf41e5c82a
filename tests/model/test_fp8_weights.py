"""The FP8 weights' sizes for the published model, and which models the kernels refuse."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sparkle.engine.settings import default_model
from sparkle.errors import UnsupportedModel
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.fp8_weights import empty_weights, tensor_bytes


def published() -> ModelConfig:
    """The dimensions of Qwen3.8-27B."""
    tiny = read_config(default_model())
    return dataclasses.replace(
        tiny,
        vocab_size=248_320,
        hidden_size=5120,
        intermediate_size=17_408,
        layer_types=tiny.layer_types * 8,
        num_heads=24,
        num_kv_heads=4,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
    )


def test_the_published_model_takes_the_bytes_of_its_file() -> None:
    weights = empty_weights(published(), torch.device("meta"))
    layers = tensor_bytes(weights.layers)
    # one byte for each element in blocks, and what a layer keeps besides
    assert 24.3e9 < layers < 24.5e9
    assert tensor_bytes(weights.embedding) == 248_320 * 5120 * 2
    assert tensor_bytes(weights.lm_head) == 248_320 * 5120 + 1940 * 40 * 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            dataclasses.replace(published(), hidden_size=5000),
            "hidden_size is 5000 but FP8 blocks need a multiple of 128",
        ),
        (dataclasses.replace(published(), intermediate_size=100), "intermediate_size is 100"),
        (
            dataclasses.replace(published(), linear_value_dim=64),
            "linear heads are 128 and 64 wide but the FP8 kernels need 128",
        ),
        (dataclasses.replace(published(), conv_width=3), "linear_conv_kernel_dim is 3"),
    ],
    ids=["hidden", "intermediate", "heads", "taps"],
)
def test_sizes_that_the_kernels_do_not_take_are_named(config: ModelConfig, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        empty_weights(config, torch.device("meta"))

"""The FP8 weights' sizes for the published model, and which models the kernels refuse."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sparkle.errors import UnsupportedModel
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_weights import empty_weights, tensor_bytes
from sparkle.model.shapes import shape_27b


def test_the_published_model_takes_the_bytes_of_its_file() -> None:
    weights = empty_weights(shape_27b(), torch.device("meta"))
    layers = tensor_bytes(weights.layers)
    # one byte for each element in blocks, and what a layer keeps besides
    assert 24.3e9 < layers < 24.5e9
    assert tensor_bytes(weights.embedding) == 248_320 * 5120 * 2
    assert tensor_bytes(weights.lm_head) == 248_320 * 5120 + 1940 * 40 * 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            dataclasses.replace(shape_27b(), hidden_size=5000),
            "hidden_size is 5000 but FP8 blocks need a multiple of 128",
        ),
        (dataclasses.replace(shape_27b(), intermediate_size=100), "intermediate_size is 100"),
        (
            dataclasses.replace(shape_27b(), linear_value_dim=64),
            "linear heads are 128 and 64 wide but the FP8 kernels need 128",
        ),
        (dataclasses.replace(shape_27b(), conv_width=3), "linear_conv_kernel_dim is 3"),
    ],
    ids=["hidden", "intermediate", "heads", "taps"],
)
def test_sizes_that_the_kernels_do_not_take_are_named(config: ModelConfig, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        empty_weights(config, torch.device("meta"))

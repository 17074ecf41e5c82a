"""The FP8 block form gives the very bits of its dequantised copy, and its scales are accounted for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.errors import TensorMismatch
from sparkle.model.config import read_config
from sparkle.model.decoder import Decoder
from sparkle.model.weights import LoadReport, load_weights
from tests.model.checkpoint_files import Tensors, dequantise, quantise, read_tensors, write_tensors
from tests.model.driver import CPU, Driver
from tests.model.published import VOCAB, Published, Shape

# blocks of 128 that fit, fall short and stick out on either side
SHAPE = Shape(
    hidden_size=136,
    intermediate_size=200,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=1,
    linear_num_value_heads=3,
    linear_key_head_dim=32,
    linear_value_head_dim=48,
)
MATRICES = 3 * 3 + 4 + 4 * 3  # of three linear layers, one full, and every layer's MLP


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    Published(SHAPE, 1).save(directory)
    return directory


def copy_of(plain: Path, directory: Path, tensors: Tensors) -> Path:
    shutil.copytree(plain, directory)
    write_tensors(directory, tensors)
    return directory


def logits_of(directory: Path) -> tuple[Tensor, LoadReport]:
    config = read_config(directory)
    weights, report = load_weights(directory, config, device=CPU, dtype=torch.float32)
    driver = Driver(Decoder(config, weights), config)
    [logits] = driver.run((driver.start(), [token % VOCAB for token in range(0, 700, 7)]))
    return logits, report


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_the_bits_of_the_dequantised_copy(plain: Path, tmp_path: Path, scale_dtype: torch.dtype) -> None:
    quantised = quantise(read_tensors(plain), scale_dtype)
    got, report = logits_of(copy_of(plain, tmp_path / "fp8", quantised))
    assert report.dequantised == MATRICES
    wanted, report = logits_of(copy_of(plain, tmp_path / "copy", dequantise(quantised)))
    assert report.dequantised == 0
    assert torch.equal(got, wanted)
    # near the original, so that the two agree on the right thing: FP8 keeps 4 bits, an error of up to 1/16
    original, _ = logits_of(plain)
    assert 0.001 < float((got - original).std()) < 0.1


def test_any_matrix_may_be_quantised_whatever_the_config_lists(plain: Path, tmp_path: Path) -> None:
    tensors = read_tensors(plain)
    name = "lm_head.weight"
    tensors |= {
        name: torch.ones_like(tensors[name]).to(torch.float8_e4m3fn),
        name + "_scale_inv": torch.tensor([[2.0, 4.0]]),
    }
    directory = copy_of(plain, tmp_path / "fp8", tensors)
    weights, report = load_weights(directory, read_config(directory), device=CPU, dtype=torch.float32)
    assert report.dequantised == 1
    assert torch.equal(weights.lm_head[:, :128], torch.full((VOCAB, 128), 2.0))
    assert torch.equal(weights.lm_head[:, 128:], torch.full((VOCAB, 8), 4.0))


UP = "model.layers.2.mlp.up_proj.weight"
NORM = "model.layers.2.input_layernorm.weight"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({UP + "_scale_inv": None}, f"{UP} is FP8 but its scales {UP}_scale_inv are missing"),
        ({UP: torch.zeros(200, 136)}, f"{UP}_scale_inv scales no FP8 matrix"),
        ({UP: None}, f"{UP} is missing"),
        ({UP + "_scale_inv": torch.ones(2, 1)}, f"{UP}_scale_inv has shape"),
        ({UP + "_scale_inv": torch.ones(2, 2, dtype=torch.float16)}, f"{UP}_scale_inv is torch.float16"),
        ({UP: torch.zeros(200, 136).to(torch.float8_e5m2)}, f"{UP} is torch.float8_e5m2"),
        ({UP: torch.zeros(136, 200).to(torch.float8_e4m3fn)}, f"{UP} has shape"),
        ({NORM + "_scale_inv": torch.ones(2, 2)}, f"{NORM}_scale_inv scales no FP8 matrix"),
        ({NORM: torch.ones(136).to(torch.float8_e4m3fn)}, f"{NORM} is torch.float8_e4m3fn"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    plain: Path, tmp_path: Path, changes: dict[str, Tensor | None], told: str
) -> None:
    tensors = quantise(read_tensors(plain), torch.bfloat16) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(TensorMismatch) as caught:
        logits_of(copy_of(plain, tmp_path / "bad", kept))
    assert str(caught.value).startswith(told)

"""Every tensor of a checkpoint is accounted for, in each form that checkpoints come in."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.errors import CheckpointError, TensorMismatch
from sparkle.model.config import LayerType, read_config
from sparkle.model.decoder import Decoder
from sparkle.model.weights import DeltaNetWeights, LoadReport, load_weights
from tests.model.checkpoint_files import read_fields, read_tensors, write_fields, write_tensors
from tests.model.driver import CPU, Driver
from tests.model.published import Published, Shape

INDEX = "model.safetensors.index.json"
SHARDS = 6


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    Published(Shape(), 1).save(directory)
    return directory


@pytest.fixture
def single(plain: Path, tmp_path: Path) -> Path:
    """A checkpoint in one file, to be changed."""
    return Path(shutil.copytree(plain, tmp_path / "single"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The same checkpoint in several files with an index, to be changed."""
    Published(Shape(), 1).save(tmp_path / "sharded", max_shard_size="100KB")
    return tmp_path / "sharded"


def load(directory: Path) -> LoadReport:
    return load_weights(directory, read_config(directory), device=CPU, dtype=torch.float32)[1]


def logits_of(directory: Path) -> Tensor:
    config = read_config(directory)
    weights, _ = load_weights(directory, config, device=CPU, dtype=torch.float32)
    driver = Driver(Decoder(config, weights), config)
    [logits] = driver.run((driver.start(), list(range(70))))
    return logits


def test_shards_give_the_bits_of_one_file(plain: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) == SHARDS
    assert torch.equal(logits_of(sharded), logits_of(plain))


def test_the_wrapped_form_gives_the_same_bits_and_lists_what_it_skips(plain: Path, single: Path) -> None:
    later = {
        "model.visual.patch_embed.proj.weight": torch.ones(2),
        "mtp.fc.weight": torch.ones(3, 3, dtype=torch.int8),
        "mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1),
    }
    nested = {
        re.sub(r"^model\.", "model.language_model.", name): tensor
        for name, tensor in read_tensors(plain).items()
    }
    write_tensors(single, nested | later)
    text = read_fields(single / "config.json")
    write_fields(single / "config.json", {"model_type": "qwen3_5", "text_config": text, "vision_config": {}})
    assert load(single) == LoadReport(dequantised=0, skipped=tuple(sorted(later)))
    assert torch.equal(logits_of(single), logits_of(plain))


def test_the_bundled_model_is_read_in_full() -> None:
    directory = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
    layer_types = read_config(directory).layer_types
    full = layer_types.count(LayerType.FULL)
    linear = layer_types.count(LayerType.LINEAR)
    # the draft head's layer is one more of full attention
    assert load(directory) == LoadReport(dequantised=7 * (full + 1) + 6 * linear, skipped=())


def test_bfloat16_is_widened_exactly(plain: Path, single: Path) -> None:
    narrow = {name: tensor.bfloat16() for name, tensor in read_tensors(plain).items()}
    write_tensors(single, narrow)
    got = logits_of(single)
    write_tensors(single, {name: tensor.float() for name, tensor in narrow.items()})
    assert torch.equal(got, logits_of(single))


def test_matrices_take_the_dtype_asked_for_and_vectors_stay_float32(plain: Path) -> None:
    weights, _ = load_weights(plain, read_config(plain), device=CPU, dtype=torch.bfloat16)
    mixer = weights.layers[0].mixer
    assert isinstance(mixer, DeltaNetWeights)
    matrices = [weights.embedding, weights.lm_head, weights.layers[0].down, mixer.qkvz, mixer.ba, mixer.out]
    assert {matrix.dtype for matrix in matrices} == {torch.bfloat16}
    vectors = [weights.norm, weights.layers[0].mlp_norm, mixer.a_log, mixer.dt_bias, mixer.norm, mixer.conv]
    assert {vector.dtype for vector in vectors} == {torch.float32}


def test_the_files_may_go_once_loaded(single: Path) -> None:
    config = read_config(single)
    weights, _ = load_weights(single, config, device=CPU, dtype=torch.float32)
    before = weights.embedding.clone()
    size = (single / "model.safetensors").stat().st_size
    (single / "model.safetensors").write_bytes(bytes(size))
    assert torch.equal(weights.embedding, before)


ATTENTION = "model.layers.3.self_attn"
DELTA = "model.layers.0.linear_attn"


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("lm_head.weight", None, "is missing"),
        ("model.embed_tokens.weight", None, "is missing"),
        ("model.norm.weight", None, "is missing"),
        (f"{ATTENTION}.k_norm.weight", None, "is missing"),
        (f"{DELTA}.dt_bias", None, "is missing"),
        (f"{ATTENTION}.q_proj.bias", torch.zeros(256), "is in the checkpoint but not in this model"),
        ("model.layers.4.mlp.up_proj.weight", torch.zeros(72, 48), "but not in this model"),
        ("visual.pos_embed.weight", torch.zeros(1), "but not in this model"),
        (f"{ATTENTION}.q_proj.weight", torch.zeros(128, 48), "has shape [128, 48] but must be [256, 48]"),
        (f"{DELTA}.conv1d.weight", torch.zeros(160, 4), "has shape [160, 4] but must be [160, 1, 4]"),
        (f"{DELTA}.A_log", torch.zeros(1), "has shape [1] but must be [6]"),
        ("model.norm.weight", torch.zeros(48, 1), "has shape [48, 1] but must be [48]"),
        ("model.norm.weight", torch.zeros(48).half(), "is torch.float16 but must be"),
        ("lm_head.weight", torch.zeros(97, 48).double(), "is torch.float64 but must be"),
        ("lm_head.weight", torch.zeros(97, 48, dtype=torch.int8), "is torch.int8 but must be"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    single: Path, name: str, tensor: Tensor | None, told: str
) -> None:
    tensors = read_tensors(single)
    tensors.pop(name, None)
    write_tensors(single, tensors if tensor is None else tensors | {name: tensor})
    with pytest.raises(TensorMismatch) as caught:
        load(single)
    assert str(caught.value).startswith(f"{name} ")
    assert told in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 100, -1], ids=["empty", "no header", "half a header", "cut short"])
def test_a_damaged_file_is_refused_by_name(single: Path, length: int) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"^model\.safetensors is damaged: ") as caught:
        load(single)
    assert type(caught.value) is CheckpointError


def test_no_file_at_all(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"^model\.safetensors cannot be read: "):
        load(single)


def test_a_missing_shard(sharded: Path) -> None:
    next(sharded.glob("model-00002-*")).unlink()
    with pytest.raises(CheckpointError, match=r"^model-00002-of-00006\.safetensors cannot be read: "):
        load(sharded)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "model.safetensors.index.json is not JSON"),
        ("\N{GREEK SMALL LETTER ALPHA}", "model.safetensors.index.json is not JSON"),
        ("[]", "model.safetensors.index.json must hold a JSON object"),
        ("{}", "weight_map must be an object"),
        ('{"weight_map": {"a": 3}}', "model.safetensors.index.json must give a file name for a"),
        ('{"weight_map": {"a": "../b"}}', "model.safetensors.index.json must give a file name for a"),
    ],
)
def test_an_unreadable_index(sharded: Path, text: str, told: str) -> None:
    (sharded / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=re.escape(told)):
        load(sharded)


def test_an_index_that_is_a_pipe(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    os.mkfifo(sharded / INDEX)
    with pytest.raises(CheckpointError, match="cannot be read: it is no file"):
        load(sharded)


def test_an_index_that_names_a_tensor_too_many(sharded: Path) -> None:
    index = read_fields(sharded / INDEX)
    index["weight_map"]["model.extra"] = index["weight_map"]["lm_head.weight"]
    write_fields(sharded / INDEX, index)
    with pytest.raises(TensorMismatch, match=r"^model\.extra is in .*index\.json but in no shard"):
        load(sharded)


def test_an_index_that_forgets_a_tensor(sharded: Path) -> None:
    index = read_fields(sharded / INDEX)
    del index["weight_map"]["model.norm.weight"]
    write_fields(sharded / INDEX, index)
    with pytest.raises(TensorMismatch, match=r"^model\.norm\.weight is in model-.* but not in "):
        load(sharded)

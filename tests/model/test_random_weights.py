"""Random weights have the sizes and the spread that they are said to have, in memory and on disk alike."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparkle.errors import ConfigError
from sparkle.kernels import ops
from sparkle.model import random_values, random_weights
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.encode_values import encoded
from sparkle.model.fp8_loader import load_fp8_weights
from sparkle.model.fp8_weights import (
    Fp8AttentionWeights,
    Fp8DecoderWeights,
    Fp8DeltaNetWeights,
    require_whole_blocks,
)
from sparkle.model.published_config import config_json, generation_json
from sparkle.model.published_tensors import published_shards
from sparkle.model.random_checkpoint import checkpoint_bytes, write_random_checkpoint
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import bundled_checkpoint, shape_27b, shape_tiny
from sparkle.model.weights import load_weights
from tests.model.driver import CPU

LEVELS = bytes(range(256))
# e4m3's step is 1/512 where it is smallest: these are its numbers there and the halves between them
SMALL = [half / 1024 for half in range(-128, 128)]


@given(st.lists(st.floats(-448, 448, width=32), min_size=1, max_size=8))
def test_values_are_rounded_as_torch_rounds_them(some: list[float]) -> None:
    drawn = (some + SMALL)[:256]
    for name, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16), ("F8_E4M3", torch.float8_e4m3fn)):
        wanted = torch.tensor(drawn).to(dtype)
        got = torch.frombuffer(bytearray(encoded(drawn, name, LEVELS)), dtype=dtype)
        assert torch.equal(got.float(), wanted.float())


def test_a_level_picks_its_value() -> None:
    table = [float(level) for level in range(256)]
    assert encoded(table, "F32", b"\x03\xff\x03") == struct.pack("<fff", 3, 255, 3)


def test_distributions() -> None:
    normal = torch.tensor(random_values.normal(2.0, mean=1.0))
    assert normal.mean() == pytest.approx(1.0)
    assert normal.std() == pytest.approx(2.0, rel=0.01)
    uniform = torch.tensor(random_values.uniform(2.0, 4.0))
    assert (float(uniform.mean()), float(uniform.min())) == pytest.approx((3.0, 2.0 + 1 / 256))
    assert max(random_values.fp8_values()) < 448  # else e4m3 has no such number
    steps = torch.nn.functional.softplus(torch.tensor(random_values.dt_bias_values()))
    assert 0.001 < float(steps.min()) < 0.00102 < 0.098 < float(steps.max()) < 0.1
    rates = torch.tensor(random_values.a_log_values()).exp()
    assert 1.0 < float(rates.min()) < 1.04 < 15.9 < float(rates.max()) < 16.0


def product_gain(weight: ops.Fp8Blocks) -> float:
    """How much larger than its input a product is."""
    dense = ops.dequantise_blocks(weight.values, weight.scales)
    return float(dense.square().mean().sqrt()) * math.sqrt(dense.shape[1])


def require_ordinary(weights: Fp8DecoderWeights) -> None:
    assert float(weights.embedding.float().std()) == pytest.approx(1.0, rel=0.02)
    for layer in weights.layers:
        assert product_gain(layer.gate_up) == pytest.approx(1.0, rel=0.2)
        assert product_gain(layer.down) == pytest.approx(0.3, rel=0.2)
        assert product_gain(layer.mixer.out) == pytest.approx(0.3, rel=0.2)
        match layer.mixer:
            case Fp8AttentionWeights() as mixer:
                assert product_gain(mixer.qkvg) == pytest.approx(1.0, rel=0.2)
            case Fp8DeltaNetWeights() as mixer:
                assert product_gain(mixer.qkvz) == pytest.approx(1.0, rel=0.2)
                assert float(mixer.ba.float().std()) * 16 == pytest.approx(1.0, rel=0.1)
                assert 0.7 < float(mixer.norm.mean()) < 1.3
                assert 0 <= float(mixer.gates.a_log.min()) <= float(mixer.gates.a_log.max()) < math.log(16)
    assert product_gain(weights.lm_head) == pytest.approx(1.0, rel=0.2)
    if weights.mtp is not None:
        assert product_gain(weights.mtp.joined) == pytest.approx(1.0, rel=0.2)
        assert product_gain(weights.mtp.layer.down) == pytest.approx(0.3, rel=0.2)
        assert 0 < float(weights.mtp.hidden_norm.abs().max()) < 0.5


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_weights_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_weights, "PIECE", 100_000)
    config = replace(shape_tiny(), has_mtp=True)
    first, again, other = (random_fp8_weights(config, CPU, seed) for seed in (0, 0, 1))
    require_ordinary(first)
    assert first.mtp is not None
    assert again.mtp is not None
    assert same(first.mtp.joined.values, again.mtp.joined.values)
    assert not same(first.mtp.layer.down.values, first.layers[-1].down.values)
    assert same(first.layers[5].down.values, again.layers[5].down.values)
    assert same(first.lm_head.scales, again.lm_head.scales)
    assert not same(first.layers[5].down.values, other.layers[5].down.values)
    assert not same(first.layers[5].down.values, first.layers[4].down.values)


def test_the_published_sizes() -> None:
    config = shape_27b()
    require_whole_blocks(config)
    shards = published_shards(config)
    assert len(shards) == 66
    tensors = [tensor for shard in shards.values() for tensor in shard]
    # 14 of each linear layer, 11 of each full one, 15 of the draft head and 3 besides; scales of 6, 7 and 7
    wanted = 48 * (14 + 6) + 16 * (11 + 7) + (15 + 7) + 3
    assert len({tensor.name for tensor in tensors}) == len(tensors) == wanted
    parameters = sum(math.prod(t.shape) for t in tensors if not t.name.endswith("_scale_inv"))
    assert parameters == 26_895_998_464 + 424_699_392
    # what is published, without the headers and the vision tower, and the vectors in float32 besides
    assert checkpoint_bytes(config) == 30_866_663_264 - 2 * 460_730_096 + 2 * 48 * (48 + 128)


def write(config: ModelConfig, directory: Path, *, seed: int = 0) -> int:
    """The bytes that were told as progress."""
    told: list[int] = []
    write_random_checkpoint(config, directory, text=bundled_checkpoint(), seed=seed, progress=told.append)
    return sum(told)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("random") / "tiny"
    assert write(shape_tiny(), directory) == checkpoint_bytes(shape_tiny())
    return directory


def test_a_written_checkpoint_is_read_by_both_loaders(tiny: Path) -> None:
    config = read_config(tiny)
    assert config == replace(shape_tiny(), name="tiny")
    weights, report = load_fp8_weights(tiny, config, CPU)
    require_ordinary(weights)
    assert report.read_bytes == checkpoint_bytes(config)
    wanted, _ = load_weights(tiny, config, device=CPU, dtype=torch.float32)
    for ours, theirs in zip(weights.layers, wanted.layers, strict=True):
        assert torch.equal(ops.dequantise_blocks(ours.down.values, ours.down.scales), theirs.down)
    assert not torch.equal(wanted.layers[0].down, wanted.layers[1].down)


def test_a_draft_head_is_written_and_read_too(tmp_path: Path) -> None:
    config = replace(shape_tiny(), has_mtp=True)
    assert write(config, tmp_path / "tiny") == checkpoint_bytes(config)
    assert read_config(tmp_path / "tiny") == replace(config, name="tiny")
    weights, report = load_fp8_weights(tmp_path / "tiny", config, CPU)
    require_ordinary(weights)
    assert weights.mtp is not None
    assert (report.quantised, report.skipped, report.read_bytes) == (2, (), checkpoint_bytes(config))
    wanted, other = load_weights(tmp_path / "tiny", config, device=CPU, dtype=torch.float32)
    assert wanted.mtp is not None
    assert other.skipped == ()
    ours = weights.mtp.layer.down
    assert torch.equal(ops.dequantise_blocks(ours.values, ours.scales), wanted.mtp.layer.down)


def test_a_seed_decides_every_byte(tiny: Path, tmp_path: Path) -> None:
    write(shape_tiny(), tmp_path / "again")
    write(shape_tiny(), tmp_path / "other", seed=1)
    files = sorted(path.name for path in tiny.iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    # layers, what is outside them, draft head, index; two configs and the template; the tokenizer's two
    assert len(files) == 8 + 1 + 1 + 1 + 3 + 2
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (tiny / name).read_bytes()
    shard = "layers-3.safetensors"
    assert (tmp_path / "other" / shard).read_bytes() != (tiny / shard).read_bytes()


def test_the_large_config_reads_back(tmp_path: Path) -> None:
    config = replace(shape_27b(), end_tokens=read_config(bundled_checkpoint()).end_tokens)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation_json(config)))
    assert read_config(tmp_path) == replace(config, name=tmp_path.name)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path} is not empty")):
        write(shape_tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written: "):
        write(shape_tiny(), tmp_path / "file" / "below")


def test_a_disk_without_room_is_found_before_anything_is_written(tmp_path: Path) -> None:
    huge = replace(shape_tiny(), vocab_size=1 << 50)
    with pytest.raises(ConfigError, match=r"GB free but the checkpoint has \d+\.\d GB"):
        write(huge, tmp_path)
    assert list(tmp_path.iterdir()) == []

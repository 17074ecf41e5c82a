"""The FP8 decoder's weights are the checkpoint's, bit for bit, in each form that checkpoints come in.

The oracle is the other loader, which has its own way to read the files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.errors import CheckpointError, TensorMismatch, UnsupportedModel
from sparkle.kernels import ops
from sparkle.model import bulk_read, fp8_loader, fp8_plan
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.fp8_loader import Fp8LoadReport, load_fp8_weights
from sparkle.model.fp8_weights import (
    Fp8AttentionWeights,
    Fp8DecoderWeights,
    Fp8DeltaNetWeights,
    empty_weights,
)
from sparkle.model.shapes import bundled_checkpoint
from sparkle.model.weights import AttentionWeights, DecoderWeights, DeltaNetWeights, load_weights
from tests.model.checkpoint_files import (
    Tensors,
    quantise,
    read_fields,
    read_tensors,
    write_fields,
    write_tensors,
)
from tests.model.driver import CPU
from tests.model.published import VOCAB, Published, Shape
from tests.model.published_mtp import PublishedMtp

# blocks of 128 throughout, but for the rows of lm_head; heads of 256 have two blocks each
SHAPE = Shape(
    hidden_size=256,
    intermediate_size=384,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=256,
    linear_num_key_heads=1,
    linear_num_value_heads=3,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
)
MATRICES = 3 * 3 + 4 + 4 * 3  # of three linear layers, one full, and every layer's MLP


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    Published(SHAPE, 1).save(directory)
    return directory


@pytest.fixture(scope="module")
def fp8_tensors(plain: Path) -> Tensors:
    return quantise(read_tensors(plain), torch.bfloat16)


@pytest.fixture
def single(plain: Path, fp8_tensors: Tensors, tmp_path: Path) -> Path:
    """The FP8 form in one file, to be changed."""
    directory = Path(shutil.copytree(plain, tmp_path / "single"))
    write_tensors(directory, fp8_tensors)
    return directory


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing is written to is no number."""

    def poisoned(config: ModelConfig, device: torch.device) -> Fp8DecoderWeights:
        weights = empty_weights(config, device)
        for tensor in tensors_of(weights):
            tensor.view(torch.uint8).fill_(0xFF)
        return weights

    monkeypatch.setattr(fp8_loader, "empty_weights", poisoned)


def tensors_of(weights: Fp8DecoderWeights) -> list[Tensor]:
    found: list[Tensor] = [weights.embedding, weights.norm, *parts(weights.lm_head)]
    layers = list(weights.layers)
    if (mtp := weights.mtp) is not None:
        found += [mtp.embedding_norm, mtp.hidden_norm, mtp.norm, *parts(mtp.joined)]
        layers.append(mtp.layer)
    for layer in layers:
        found += [layer.input_norm, layer.mlp_norm, *parts(layer.gate_up), *parts(layer.down)]
        match layer.mixer:
            case Fp8AttentionWeights() as mixer:
                found += [*parts(mixer.qkvg), mixer.query_norm, mixer.key_norm, *parts(mixer.out)]
            case Fp8DeltaNetWeights() as mixer:
                found += [*parts(mixer.qkvz), mixer.ba, mixer.conv, mixer.norm, *parts(mixer.out)]
                found += [mixer.gates.a_log, mixer.gates.dt_bias]
    return found


def parts(blocks: ops.Fp8Blocks) -> list[Tensor]:
    return [blocks.values, blocks.scales]


def load(directory: Path) -> tuple[Fp8DecoderWeights, Fp8LoadReport]:
    return load_fp8_weights(directory, read_config(directory), CPU)


def require_equal(got: Fp8DecoderWeights, wanted: DecoderWeights, *, fp8: bool) -> None:
    """`fp8`: the matrices were stored in blocks; else they are quantised here, from the joined matrix."""

    def blocks(got: ops.Fp8Blocks, wanted: Tensor) -> None:
        if fp8:
            assert torch.equal(ops.dequantise_blocks(got.values, got.scales), wanted)
        else:
            quantised(got, wanted)

    def quantised(got: ops.Fp8Blocks, wanted: Tensor) -> None:
        quantised = ops.quantise_blocks(wanted)
        assert torch.equal(got.values.float(), quantised.values.float())
        assert torch.equal(got.scales, quantised.scales)

    assert torch.equal(got.embedding, wanted.embedding.bfloat16())
    assert torch.equal(got.norm, wanted.norm)
    quantised(got.lm_head, wanted.lm_head)
    our_layers, their_layers = list(got.layers), list(wanted.layers)
    assert (got.mtp is None) == (wanted.mtp is None)
    if got.mtp is not None and wanted.mtp is not None:
        assert torch.equal(got.mtp.embedding_norm, wanted.mtp.embedding_norm)
        assert torch.equal(got.mtp.hidden_norm, wanted.mtp.hidden_norm)
        assert torch.equal(got.mtp.norm, wanted.mtp.norm)
        quantised(got.mtp.joined, wanted.mtp.joined)
        our_layers.append(got.mtp.layer)
        their_layers.append(wanted.mtp.layer)
    for ours, theirs in zip(our_layers, their_layers, strict=True):
        assert torch.equal(ours.input_norm, theirs.input_norm)
        assert torch.equal(ours.mlp_norm, theirs.mlp_norm)
        blocks(ours.gate_up, theirs.gate_up)
        blocks(ours.down, theirs.down)
        match ours.mixer, theirs.mixer:
            case Fp8AttentionWeights() as mixer, AttentionWeights() as other:
                blocks(mixer.qkvg, other.qkvg)
                blocks(mixer.out, other.out)
                assert torch.equal(mixer.query_norm, other.query_norm)
                assert torch.equal(mixer.key_norm, other.key_norm)
            case Fp8DeltaNetWeights() as mixer, DeltaNetWeights() as other:
                blocks(mixer.qkvz, other.qkvz)
                blocks(mixer.out, other.out)
                assert torch.equal(mixer.ba, other.ba.bfloat16())
                assert torch.equal(mixer.conv, other.conv)
                assert torch.equal(mixer.gates.a_log, other.a_log)
                assert torch.equal(mixer.gates.dt_bias, other.dt_bias)
                assert torch.equal(mixer.norm, other.norm)
            case _:
                raise AssertionError("another kind of layer")


def oracle(directory: Path) -> DecoderWeights:
    return load_weights(directory, read_config(directory), device=CPU, dtype=torch.float32)[0]


def size_of(directory: Path, *, without: str = "nothing", shard: str = "model.safetensors") -> int:
    tensors = read_tensors(directory, shard)
    return sum(tensor.nbytes for name, tensor in tensors.items() if without not in name)


def test_the_bundled_model() -> None:
    weights, report = load(bundled_checkpoint())
    require_equal(weights, oracle(bundled_checkpoint()), fp8=True)
    head_bytes = size_of(bundled_checkpoint(), shard="mtp.safetensors")
    # the output matrix, and the one in which the draft head joins its two inputs
    wanted = Fp8LoadReport(quantised=2, skipped=(), read_bytes=size_of(bundled_checkpoint()) + head_bytes)
    assert report == wanted


@pytest.fixture(params=[None, 10_000], ids=["whole parts", "small parts"])
def part_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices and vectors in one part each, or in many, and reads that hold several or one."""
    if request.param is not None:
        monkeypatch.setattr(fp8_plan, "PART_BYTES", request.param)
        monkeypatch.setattr(bulk_read, "BUFFER_BYTES", 3 * request.param)


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_blocks_with_scales_of_either_dtype(plain: Path, single: Path, scale_dtype: torch.dtype) -> None:
    write_tensors(single, quantise(read_tensors(plain), scale_dtype))
    weights, report = load(single)
    require_equal(weights, oracle(single), fp8=True)
    assert report == Fp8LoadReport(quantised=1, skipped=(), read_bytes=size_of(single))


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_matrices_that_are_not_in_blocks_are_quantised(plain: Path, single: Path, dtype: torch.dtype) -> None:
    write_tensors(single, {name: tensor.to(dtype) for name, tensor in read_tensors(plain).items()})
    weights, report = load(single)
    require_equal(weights, oracle(single), fp8=False)
    assert report.quantised == MATRICES + 1


def test_the_head_may_be_in_blocks_too(single: Path, fp8_tensors: Tensors) -> None:
    values = torch.arange(VOCAB * 256).remainder(97).view(VOCAB, 256).to(torch.float8_e4m3fn)
    scales = torch.tensor([[2.0, 4.0]])
    head = {"lm_head.weight": values, "lm_head.weight_scale_inv": scales}
    write_tensors(single, fp8_tensors | head)
    weights, report = load(single)
    assert report.quantised == 0
    assert torch.equal(weights.lm_head.values.float(), values.float())
    assert torch.equal(weights.lm_head.scales, scales)


def test_loading_twice_gives_the_same_bits(single: Path) -> None:
    first, second = load(single)[0], load(single)[0]
    for a, b in zip(tensors_of(first), tensors_of(second), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_shards_and_a_wrapped_form_with_later_parts(
    plain: Path, fp8_tensors: Tensors, tmp_path: Path
) -> None:
    later = {
        "model.visual.patch_embed.proj.weight": torch.ones(2),
        "mtp.fc.weight": torch.ones(3, 3, dtype=torch.int8),
        "mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1),
    }
    nested = {re.sub(r"^model\.", "model.language_model.", name): t for name, t in fp8_tensors.items()}
    directory = tmp_path / "nested"
    shutil.copytree(plain, directory)
    shards: dict[str, Tensors] = {}
    for number, (name, tensor) in enumerate((nested | later).items()):
        shards.setdefault(f"shard-{number % 3}.safetensors", {})[name] = tensor
    for file, tensors in shards.items():
        write_tensors(directory, tensors)
        (directory / "model.safetensors").rename(directory / file)
    files = {name: file for file, tensors in shards.items() for name in tensors}
    write_fields(directory / "model.safetensors.index.json", {"weight_map": files})
    text = read_fields(plain / "config.json")
    write_fields(directory / "config.json", {"model_type": "qwen3_5", "text_config": text})
    weights, report = load(directory)
    require_equal(weights, oracle(directory), fp8=True)
    assert report.skipped == tuple(sorted(later))
    assert report.read_bytes == sum(tensor.nbytes for tensor in nested.values())


@pytest.fixture
def with_head(single: Path, tmp_path: Path) -> Path:
    """The FP8 form with a draft head, whose own first matrix is in bfloat16 as published."""
    PublishedMtp(SHAPE, 1).save(tmp_path / "with head")
    head = {
        name: tensor.bfloat16() if name == "mtp.fc.weight" else tensor
        for name, tensor in read_tensors(tmp_path / "with head").items()
        if name.startswith("mtp.")
    }
    write_tensors(single, read_tensors(single) | quantise(head, torch.bfloat16))
    write_fields(single / "config.json", read_fields(single / "config.json") | {"mtp_num_hidden_layers": 1})
    return single


@pytest.mark.usefixtures("part_bytes")
def test_the_draft_head_is_taken_in_full(with_head: Path) -> None:
    assert sum(name.startswith("mtp.") for name in read_tensors(with_head)) == 15 + 7
    weights, report = load(with_head)
    require_equal(weights, oracle(with_head), fp8=True)
    assert report == Fp8LoadReport(quantised=2, skipped=(), read_bytes=size_of(with_head))


def test_a_head_in_bfloat16_is_quantised(with_head: Path) -> None:
    tensors = read_tensors(with_head)
    prefix = "mtp.layers.0.mlp.down_proj.weight"
    tensors.pop(prefix + "_scale_inv")
    tensors[prefix] = torch.randn(
        tensors[prefix].shape, generator=torch.Generator().manual_seed(3)
    ).bfloat16()
    write_tensors(with_head, tensors)
    weights, report = load(with_head)
    wanted = oracle(with_head).mtp
    assert report.quantised == 3
    assert weights.mtp is not None
    assert wanted is not None
    down = ops.quantise_blocks(wanted.layer.down)
    assert torch.equal(weights.mtp.layer.down.values.float(), down.values.float())
    assert torch.equal(weights.mtp.layer.down.scales, down.scales)


def test_a_head_that_is_not_asked_for_stays_in_the_file(with_head: Path) -> None:
    config = replace(read_config(with_head), has_mtp=False)
    weights, report = load_fp8_weights(with_head, config, CPU)
    assert weights.mtp is None
    assert len(report.skipped) == 15 + 7
    assert {name.split(".")[0] for name in report.skipped} == {"mtp"}


def test_a_copy_without_the_head_has_none(single: Path) -> None:
    write_fields(single / "config.json", read_fields(single / "config.json") | {"mtp_num_hidden_layers": 1})
    weights, report = load(single)
    assert weights.mtp is None
    assert oracle(single).mtp is None
    assert report.skipped == ()


@pytest.mark.parametrize(
    "name", ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight_scale_inv"]
)
def test_a_head_in_part_is_refused_by_name(with_head: Path, name: str) -> None:
    tensors = read_tensors(with_head)
    tensors.pop(name)
    write_tensors(with_head, tensors)
    with pytest.raises(TensorMismatch, match=re.escape(name)):
        load(with_head)
    with pytest.raises(TensorMismatch, match=re.escape(name)):
        oracle(with_head)


def test_the_files_may_go_once_loaded(single: Path) -> None:
    wanted = oracle(single)
    weights, _ = load(single)
    file = single / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    require_equal(weights, wanted, fp8=True)


ATTENTION = "model.layers.3.self_attn"
DELTA = "model.layers.0.linear_attn"
UP = "model.layers.2.mlp.up_proj.weight"
NORM = "model.layers.2.input_layernorm.weight"
FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lm_head.weight": None}, "lm_head.weight is missing"),
        ({"model.embed_tokens.weight": None}, "model.embed_tokens.weight is missing"),
        ({f"{ATTENTION}.k_norm.weight": None}, f"{ATTENTION}.k_norm.weight is missing"),
        ({f"{DELTA}.dt_bias": None}, f"{DELTA}.dt_bias is missing"),
        ({UP: None}, f"{UP} is missing"),
        ({f"{ATTENTION}.q_proj.bias": torch.zeros(256)}, f"{ATTENTION}.q_proj.bias is in the checkpoint but"),
        (
            {"model.layers.4.mlp.up_proj.weight": torch.zeros(1)},
            "model.layers.4.mlp.up_proj.weight is in the",
        ),
        ({UP: torch.zeros(256, 384).to(FP8)}, f"{UP} has shape [256, 384] but must be [384, 256]"),
        ({UP: torch.zeros(384, 256, 1).to(FP8)}, f"{UP} has shape [384, 256, 1] but must be"),
        (
            {f"{DELTA}.conv1d.weight": torch.zeros(640, 4)},
            f"{DELTA}.conv1d.weight has shape [640, 4] but must",
        ),
        ({f"{DELTA}.A_log": torch.zeros(1)}, f"{DELTA}.A_log has shape [1] but must be [3]"),
        ({f"{DELTA}.in_proj_b.weight": torch.zeros(6, 256)}, f"{DELTA}.in_proj_b.weight has shape [6, 256]"),
        ({NORM: torch.zeros(256).half()}, f"{NORM} is F16 but must be BF16 or F32"),
        ({NORM: torch.ones(256).to(FP8)}, f"{NORM} is F8_E4M3 but must be BF16 or F32"),
        ({UP: torch.zeros(384, 256).to(torch.float8_e5m2)}, f"{UP} is F8_E5M2 but must be F8_E4M3 or BF16"),
        ({UP + "_scale_inv": None}, f"{UP} is FP8 but its scales {UP}_scale_inv are missing"),
        ({UP + "_scale_inv": torch.ones(2, 3)}, f"{UP}_scale_inv has shape [2, 3] but must be [3, 2]"),
        ({UP + "_scale_inv": torch.ones(3, 2).half()}, f"{UP}_scale_inv is F16 but must be BF16 or F32"),
        ({UP: torch.zeros(384, 256)}, f"{UP}_scale_inv scales no FP8 matrix"),
        ({NORM + "_scale_inv": torch.ones(2, 2)}, f"{NORM}_scale_inv scales no FP8 matrix"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    single: Path, fp8_tensors: Tensors, changes: dict[str, Tensor | None], told: str
) -> None:
    changed = fp8_tensors | changes
    write_tensors(single, {name: tensor for name, tensor in changed.items() if tensor is not None})
    with pytest.raises(TensorMismatch) as caught:
        load(single)
    assert str(caught.value).startswith(told)


def test_heads_that_are_not_whole_blocks(tmp_path: Path) -> None:
    Published(replace(SHAPE, head_dim=64, num_attention_heads=4, num_key_value_heads=2), 1).save(tmp_path)
    told = r"q_proj\.weight is joined with others in pieces of 64 rows, but FP8 blocks need a multiple of 128"
    with pytest.raises(UnsupportedModel, match=told):
        load(tmp_path)


@pytest.mark.parametrize("length", [0, 7, 100, -1], ids=["empty", "no header", "half a header", "cut short"])
def test_a_damaged_file_is_refused_by_name(single: Path, length: int) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"^model\.safetensors is damaged: ") as caught:
        load(single)
    assert type(caught.value) is CheckpointError


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        NORM,
        f"{UP}_scale_inv",
        f"{ATTENTION}.q_proj.weight_scale_inv",
        f"{DELTA}.A_log",
        f"{DELTA}.conv1d.weight",
    ],
)
@pytest.mark.parametrize("loader", [load, oracle])
def test_what_is_not_finite_is_refused_by_name(
    single: Path, fp8_tensors: Tensors, loader: Callable[[Path], object], name: str, value: float
) -> None:
    broken = fp8_tensors[name].clone()
    broken.view(-1)[-1] = value
    write_tensors(single, fp8_tensors | {name: broken})
    with pytest.raises(CheckpointError, match=f"^{re.escape(name)} has values that are not finite"):
        loader(single)


def pipe(file: Path) -> None:
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.mkdir()


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, folder, endless])
@pytest.mark.parametrize("loader", [load, oracle])
def test_what_is_no_file_is_not_read(
    single: Path, loader: Callable[[Path], object], make: Callable[[Path], None]
) -> None:
    (single / "model.safetensors").unlink()
    make(single / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^model\.safetensors cannot be read: it is no file$"):
        loader(single)


@pytest.mark.parametrize("file", ["../x", "a/b", "", "..", ".", "a\0b", "a\ud800", "a\nb", 3])
@pytest.mark.parametrize("loader", [load, oracle])
def test_an_index_gives_plain_file_names(
    single: Path, loader: Callable[[Path], object], file: object
) -> None:
    write_fields(single / "model.safetensors.index.json", {"weight_map": {"a": file}})
    with pytest.raises(CheckpointError, match=r"index\.json must give a file name for a$"):
        loader(single)


@pytest.mark.gpu
def test_a_gpu_is_given_the_same_bits() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    gpu = torch.device("cuda")
    directory = bundled_checkpoint()
    on_gpu, _ = load_fp8_weights(directory, read_config(directory), gpu)
    for a, b in zip(tensors_of(on_gpu), tensors_of(load(directory)[0]), strict=True):
        assert a.is_cuda
        assert torch.equal(a.cpu().view(torch.uint8), b.view(torch.uint8))

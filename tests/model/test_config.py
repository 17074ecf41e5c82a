"""config.json: the published form is read in full; what this model does not have is refused by name."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from sparkle.errors import CheckpointError, UnsupportedModel
from sparkle.model.config import LayerType, ModelConfig, read_config
from tests.model.checkpoint_files import Json, write_fields

# the text model of Qwen3.8-27B-FP8 as published, and its wrapper
TEXT: Json = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": 248044,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 17408,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "output_gate_type": "swish",
    "pad_token_id": None,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 248320,
}
WRAPPER: Json = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "language_model_only": False,
    "model_type": "qwen3_5",
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "transformers_version": "5.8.0",
    "video_token_id": 248057,
    "vision_config": {"depth": 27, "hidden_act": "gelu_pytorch_tanh"},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}
GENERATION: Json = {"eos_token_id": [248046, 248044], "temperature": 1.0}


def read(directory: Path, fields: Json, generation: Json | None = None) -> ModelConfig:
    write_fields(directory / "config.json", fields)
    if generation is not None:
        write_fields(directory / "generation_config.json", generation)
    return read_config(directory)


def changed(fields: Json, path: str, value: Any) -> Json:
    """A copy with the field at a dotted path set, or removed where the value is `...`."""
    result = copy.deepcopy(fields)
    *parents, name = path.split(".")
    place = result
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return result


def test_the_published_model(tmp_path: Path) -> None:
    directory = tmp_path / "Qwen3.8-27B-FP8"
    directory.mkdir()
    config = read(directory, WRAPPER, GENERATION)
    assert config == ModelConfig(
        name="Qwen3.8-27B-FP8",
        vocab_size=248320,
        hidden_size=5120,
        intermediate_size=17408,
        layer_types=(LayerType.LINEAR, LayerType.LINEAR, LayerType.LINEAR, LayerType.FULL) * 16,
        num_heads=24,
        num_kv_heads=4,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        mrope_section=(11, 11, 10),
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_key_dim=128,
        linear_value_dim=128,
        conv_width=4,
        rms_norm_eps=1e-6,
        max_context_tokens=262144,
        end_tokens=(248046, 248044),
        has_mtp=True,
    )
    assert (config.num_layers, config.num_kv_layers) == (64, 17)
    assert (config.linear_key_size, config.linear_value_size, config.conv_channels) == (2048, 6144, 10240)


def test_the_flat_form_is_the_same_model(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT, GENERATION) == read(tmp_path, WRAPPER, GENERATION)


@pytest.mark.parametrize("value", [0, None, ...], ids=["none", "null", "absent"])
def test_a_model_without_a_draft_head(tmp_path: Path, value: int | None) -> None:
    config = read(tmp_path, changed(TEXT, "mtp_num_hidden_layers", value))
    assert not config.has_mtp
    assert config.num_kv_layers == 16


def test_layer_types_follow_from_the_interval_where_they_are_not_given(tmp_path: Path) -> None:
    fields = changed(TEXT, "layer_types", ...)
    assert read(tmp_path, fields).layer_types == read(tmp_path, TEXT).layer_types
    irregular = changed(changed(TEXT, "num_hidden_layers", 3), "layer_types", ["full_attention"] * 3)
    assert read(tmp_path, irregular).layer_types == (LayerType.FULL,) * 3


@pytest.mark.parametrize("path", ["rope_theta", "partial_rotary_factor"])
def test_older_files_have_rope_fields_beside_the_rope(tmp_path: Path, path: str) -> None:
    value = TEXT["rope_parameters"][path]
    fields = changed(changed(TEXT, f"rope_parameters.{path}", ...), path, value)
    assert read(tmp_path, fields) == read(tmp_path, TEXT)
    with pytest.raises(UnsupportedModel, match=rf"^{path} is "):
        read(tmp_path, changed(TEXT, path, value / 2))


@pytest.mark.parametrize(
    ("fields", "generation", "end_tokens"),
    [
        (TEXT, None, (248044,)),
        (TEXT, {"eos_token_id": None}, (248044,)),
        (TEXT, {"eos_token_id": 248046}, (248046, 248044)),
        (changed(TEXT, "eos_token_id", None), {"eos_token_id": [5, 6]}, (5, 6)),
        (WRAPPER | {"eos_token_id": [7, 248044]}, None, (248044, 7)),
    ],
)
def test_end_tokens(
    tmp_path: Path, fields: Json, generation: Json | None, end_tokens: tuple[int, ...]
) -> None:
    assert read(tmp_path, fields, generation).end_tokens == end_tokens


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("model_type", "qwen3_next", "model_type is 'qwen3_next'"),
        ("text_config", ..., "text_config must be an object"),
        ("text_config.model_type", "qwen3_5_moe_text", "text_config.model_type is 'qwen3_5_moe_text'"),
        ("text_config.attention_bias", True, "attention_bias is True but must be False"),
        ("text_config.attn_output_gate", False, "attn_output_gate is False but must be True"),
        ("text_config.hidden_act", "gelu", "hidden_act is 'gelu' but must be 'silu'"),
        ("text_config.output_gate_type", "sigmoid", "output_gate_type is 'sigmoid'"),
        ("text_config.mamba_ssm_dtype", "bfloat16", "mamba_ssm_dtype is 'bfloat16'"),
        ("text_config.tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("text_config.mtp_num_hidden_layers", 2, "mtp_num_hidden_layers is 2 but must be 0 or 1"),
        (
            "text_config.mtp_use_dedicated_embeddings",
            True,
            "mtp_use_dedicated_embeddings is True but must be",
        ),
        ("text_config.num_experts", 128, "num_experts is a field that this model does not have"),
        ("text_config.sliding_window", 4096, "sliding_window is a field"),
        ("text_config.rope_scaling", {"type": "yarn"}, "rope_scaling is a field"),
        ("audio_config", {}, "audio_config is a field"),
        ("head_dim", 128, "head_dim is a field that this model does not have"),
        ("text_config.rope_parameters", None, "rope_parameters must be an object"),
        ("text_config.rope_parameters.rope_type", "yarn", "rope_parameters.rope_type is 'yarn'"),
        ("text_config.rope_parameters.factor", 4.0, "rope_parameters.factor is a field"),
        ("text_config.rope_parameters.mrope_interleaved", False, "rope_parameters.mrope_interleaved is"),
        ("text_config.rope_parameters.mrope_section", [16, 16], "mrope_section must be three"),
        ("text_config.rope_parameters.mrope_section", 32, "mrope_section must be a list"),
        ("text_config.rope_parameters.rope_theta", ..., "rope_theta must be a positive number"),
        ("text_config.layer_types", ["linear_attention"], "layer_types has 1 entries but num_hidden_layers"),
        ("text_config.layer_types", ["mamba"] * 64, "layer_types: 'mamba' is not"),
        ("text_config.num_key_value_heads", 5, "num_heads is 24 but must be a multiple of num_kv_heads, 5"),
        ("text_config.linear_num_key_heads", 32, "linear_num_value_heads is 48 but must be a multiple of"),
        ("text_config.head_dim", 20, "rotary_dim is 5 but must be even"),
        ("text_config.partial_rotary_factor", 2, "partial_rotary_factor is 2.0 but 0.25 in rope_parameters"),
        (
            "text_config.vocab_size",
            "248320",
            "vocab_size must be a positive whole number up to 1,048,576, not '248320'",
        ),
        ("text_config.vocab_size", True, "vocab_size must be a positive whole number"),
        ("text_config.hidden_size", 0, "hidden_size must be a positive whole number up to 1,048,576, not 0"),
        (
            "text_config.hidden_size",
            ...,
            "hidden_size must be a positive whole number up to 1,048,576, not None",
        ),
        ("text_config.rms_norm_eps", -1e-6, "rms_norm_eps must be a positive number"),
        *(
            (f"text_config.{name}", 2**20 + 1, f"{name} must be a positive whole number up to 1,048,576")
            for name in ("vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
        ),
        ("text_config.rms_norm_eps", math.inf, "rms_norm_eps must be a positive number, not inf"),
        ("text_config.rms_norm_eps", 10**400, "rms_norm_eps must be a positive number, not one of so many"),
        ("text_config.rope_parameters.mrope_section", [-1, 22, 11], "mrope_section must be three"),
        ("text_config.rope_parameters.mrope_section", [10**30, 0, 0], "mrope_section must be three"),
        ("text_config.rms_norm_eps", "x", "rms_norm_eps must be a positive number"),
        ("text_config.eos_token_id", None, "eos_token_id gives []"),
        ("text_config.eos_token_id", 248320, "eos_token_id gives [248320] but needs ids from 0 to 248319"),
        ("text_config.eos_token_id", "2", "eos_token_id must be token ids, not '2'"),
        ("quantization_config", "fp8", "quantization_config must be an object"),
        ("quantization_config.quant_method", "gptq", "quantization_config.quant_method is 'gptq'"),
        ("quantization_config.weight_block_size", [64, 64], "quantization_config.weight_block_size is"),
        ("quantization_config.activation_scheme", "static", "quantization_config.activation_scheme is"),
        ("quantization_config.scale_fmt", "ue8m0", "quantization_config.scale_fmt is a field"),
    ],
)
def test_another_form_is_refused_by_name(tmp_path: Path, path: str, value: Any, told: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read(tmp_path, changed(WRAPPER, path, value))
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff", "[" * 100_000], ids=lambda text: text[:2])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_that_holds_no_object(tmp_path: Path, name: str, text: str) -> None:
    write_fields(tmp_path / "config.json", TEXT)
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=rf"^{name} (is not JSON|must hold a JSON object)"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    write_fields(tmp_path / "config.json", TEXT)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"^{name} cannot be read: it is no file$"):
        read_config(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json cannot be read: No such file"):
        read_config(tmp_path)


def test_the_bundled_model() -> None:
    directory = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
    config = read_config(directory)
    described = json.loads((directory / "config.json").read_text())["text_config"]
    assert config.name == "sparkle-tiny"
    assert config.hidden_size == described["hidden_size"]
    assert [str(kind) for kind in config.layer_types] == described["layer_types"]
    assert len(config.end_tokens) == 2

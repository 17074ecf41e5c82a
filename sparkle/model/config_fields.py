"""Which fields a checkpoint's config.json may have, and in which form; every other field is refused by name.

Knows no tensors. A field that is null counts as absent, and so does one whose name begins with an underscore.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from sparkle.errors import CheckpointError, UnsupportedModel

Fields = Mapping[str, object]

MOST = 2**20
"""No size of this architecture is larger; products of three still fit a machine integer."""

FIXED: Fields = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "mamba_ssm_dtype": "float32",
    "tie_word_embeddings": False,
    "mtp_use_dedicated_embeddings": False,
}
"""Choices that other models of the family leave open and this one does not."""

READ = frozenset(
    {
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "layer_types",
        "full_attention_interval",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rope_parameters",
        "rope_theta",
        "partial_rotary_factor",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "eos_token_id",
        "quantization_config",
        "mtp_num_hidden_layers",
    }
)

IGNORED = frozenset(
    {
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "initializer_range",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields that change no logit of the decoder."""

WRAPPER_READ = frozenset({"model_type", "text_config", "eos_token_id", "quantization_config"})
WRAPPER_IGNORED = frozenset(
    {
        "image_token_id",
        "language_model_only",
        "mtp_num_hidden_layers",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    }
)

ROPE_FIXED: Fields = {"rope_type": "default", "type": "default", "mrope_interleaved": True}
ROPE_READ = frozenset({"rope_theta", "partial_rotary_factor", "mrope_section"})

QUANTISATION_FIXED: Fields = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "dequantize": False,
}
# the dtype of each tensor says if it is quantised: published lists of module names do not match the tensors
QUANTISATION_IGNORED = frozenset({"modules_to_not_convert", "ignored_layers"})


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises CheckpointError naming the file."""
    try:
        require_file(path)
        fields: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path.name} must hold a JSON object")
    return cast(Fields, fields)


def require_file(path: Path) -> None:
    """Raises CheckpointError for what is there and no file: reading a pipe or a device would not end."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path.name} cannot be read: it is no file")


def text_fields(top: Fields) -> Fields:
    """The decoder's fields of config.json, all checked for their form.

    Raises UnsupportedModel naming the first field that is unknown or has another form.
    """
    kind = top.get("model_type")
    if kind == "qwen3_5_text":
        text = top
    elif kind == "qwen3_5":
        check_fields("", top, fixed=FIXED, others=WRAPPER_READ | WRAPPER_IGNORED | IGNORED)
        text = section(top, "text_config")
        if text.get("model_type") != "qwen3_5_text":
            raise UnsupportedModel(
                f"text_config.model_type is {text.get('model_type')!r}, not 'qwen3_5_text'"
            )
    else:
        raise UnsupportedModel(f"model_type is {kind!r}; this program serves 'qwen3_5' and 'qwen3_5_text'")
    check_fields("", text, fixed=FIXED, others=READ | IGNORED)
    check_fields("rope_parameters.", section(text, "rope_parameters"), fixed=ROPE_FIXED, others=ROPE_READ)
    for holder in (top, text):
        if holder.get("quantization_config") is not None:
            quantisation = section(holder, "quantization_config")
            check_fields(
                "quantization_config.", quantisation, fixed=QUANTISATION_FIXED, others=QUANTISATION_IGNORED
            )
    return text


def check_fields(prefix: str, fields: Fields, *, fixed: Fields, others: frozenset[str]) -> None:
    """Raises UnsupportedModel naming the first field that is not in `others` and not as in `fixed`.

    `prefix` stands before the names in the message.
    """
    for name, value in fields.items():
        if value is None or name.startswith("_") or name in others:
            continue
        if name not in fixed:
            raise UnsupportedModel(f"{prefix}{name} is a field that this model does not have")
        if value != fixed[name]:
            raise UnsupportedModel(f"{prefix}{name} is {value!r} but must be {fixed[name]!r}")


def section(fields: Fields, name: str) -> Fields:
    """The object under `name`. Raises UnsupportedModel where there is none."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{name} must be an object, not {value!r}")
    return cast(Fields, value)


def size(fields: Fields, name: str) -> int:
    """A positive whole number of at most MOST. Raises UnsupportedModel naming the field."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST:
        raise UnsupportedModel(f"{name} must be a positive whole number up to {MOST:,}, not {value!r}")
    return value


def number(fields: Fields, name: str) -> float:
    """A positive number that float64 holds. Raises UnsupportedModel naming the field."""
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UnsupportedModel(f"{name} must be a positive number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise UnsupportedModel(f"{name} must be a positive number, not one of so many digits") from None


def items(fields: Fields, name: str) -> Sequence[object]:
    """A list. Raises UnsupportedModel naming the field."""
    value = fields.get(name)
    if not isinstance(value, list):
        raise UnsupportedModel(f"{name} must be a list, not {value!r}")
    return cast(Sequence[object], value)

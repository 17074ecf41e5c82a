"""The dimensions of the one architecture, read from a checkpoint and checked. Knows no weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkle.errors import UnsupportedModel
from sparkle.model.config_fields import MOST, Fields, items, number, read_json, section, size, text_fields


class LayerType(StrEnum):
    """What mixes the tokens in a layer; the values are those of config.json."""

    LINEAR = "linear_attention"
    FULL = "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes of a checkpoint. Raises UnsupportedModel where they do not fit together."""

    name: str
    """The checkpoint directory's name."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerType, ...]
    """One a layer, the first layer first."""

    num_heads: int
    """Query heads of full attention."""

    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """Leading dimensions of a head that turn with the position."""

    rope_theta: float
    mrope_section: tuple[int, int, int]
    """Lanes of the time, height and width axes: see ops.rotary_table."""

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_dim: int
    """Width of one key head of linear attention."""

    linear_value_dim: int
    """Width of one value head of linear attention."""

    conv_width: int
    """Taps of the causal convolution, the newest token's among them."""

    rms_norm_eps: float
    max_context_tokens: int
    end_tokens: tuple[int, ...]
    """Tokens that end an answer: generation_config.json's first, then config.json's."""

    has_mtp: bool = False
    """The checkpoint has a draft head of its own: one more layer of full attention, see mtp.py."""

    def __post_init__(self) -> None:
        for many, few in (
            ("num_heads", "num_kv_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if getattr(self, many) % getattr(self, few):
                raise UnsupportedModel(
                    f"{many} is {getattr(self, many)} but must be a multiple of {few}, {getattr(self, few)}"
                )
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise UnsupportedModel(
                f"rotary_dim is {self.rotary_dim} but must be even and at most head_dim, {self.head_dim}"
            )
        beyond = [token for token in self.end_tokens if not 0 <= token < self.vocab_size]
        if beyond or not self.end_tokens:
            raise UnsupportedModel(
                f"eos_token_id gives {list(self.end_tokens)} but needs ids from 0 to {self.vocab_size - 1}"
            )

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep keys and values: those of full attention, and last the draft head's."""
        return self.layer_types.count(LayerType.FULL) + self.has_mtp

    @property
    def linear_key_size(self) -> int:
        """Width of all key heads of linear attention."""
        return self.linear_num_key_heads * self.linear_key_dim

    @property
    def linear_value_size(self) -> int:
        """Width of all value heads of linear attention."""
        return self.linear_num_value_heads * self.linear_value_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values of linear attention."""
        return 2 * self.linear_key_size + self.linear_value_size


def read_config(directory: Path) -> ModelConfig:
    """The dimensions in `directory`/config.json, nested (`qwen3_5`) or flat (`qwen3_5_text`).

    Raises UnsupportedModel naming the field that is missing, unknown or has another form than in this
    architecture, and CheckpointError where a file cannot be read.
    """
    top = read_json(directory / "config.json")
    generation_file = directory / "generation_config.json"
    generation: Fields = read_json(generation_file) if generation_file.exists() else {}
    text = text_fields(top)
    rope = section(text, "rope_parameters")
    return ModelConfig(
        name=directory.resolve().name,
        vocab_size=size(text, "vocab_size"),
        hidden_size=size(text, "hidden_size"),
        intermediate_size=size(text, "intermediate_size"),
        layer_types=_layer_types(text),
        num_heads=size(text, "num_attention_heads"),
        num_kv_heads=size(text, "num_key_value_heads"),
        head_dim=size(text, "head_dim"),
        rotary_dim=int(size(text, "head_dim") * _rope_number(text, rope, "partial_rotary_factor")),
        rope_theta=_rope_number(text, rope, "rope_theta"),
        mrope_section=_mrope_section(rope),
        linear_num_key_heads=size(text, "linear_num_key_heads"),
        linear_num_value_heads=size(text, "linear_num_value_heads"),
        linear_key_dim=size(text, "linear_key_head_dim"),
        linear_value_dim=size(text, "linear_value_head_dim"),
        conv_width=size(text, "linear_conv_kernel_dim"),
        rms_norm_eps=number(text, "rms_norm_eps"),
        max_context_tokens=size(text, "max_position_embeddings"),
        end_tokens=_end_tokens(generation, text, top),
        has_mtp=_has_mtp(text),
    )


def _layer_types(text: Fields) -> tuple[LayerType, ...]:
    num_layers = size(text, "num_hidden_layers")
    if text.get("layer_types") is None:
        interval = size(text, "full_attention_interval")
        return tuple(
            LayerType.LINEAR if layer % interval else LayerType.FULL for layer in range(1, num_layers + 1)
        )
    names = items(text, "layer_types")
    if len(names) != num_layers:
        raise UnsupportedModel(f"layer_types has {len(names)} entries but num_hidden_layers is {num_layers}")
    try:
        return tuple(LayerType(str(name)) for name in names)
    except ValueError as error:
        raise UnsupportedModel(f"layer_types: {error}") from error


def _rope_number(text: Fields, rope: Fields, name: str) -> float:
    """Newer files have the field in rope_parameters, older ones beside it, the published one in both."""
    places = [fields for fields in (rope, text) if fields.get(name) is not None] or [rope]
    values = {number(fields, name) for fields in places}
    if len(values) > 1:
        raise UnsupportedModel(f"{name} is {number(text, name)} but {number(rope, name)} in rope_parameters")
    return values.pop()


def _mrope_section(rope: Fields) -> tuple[int, int, int]:
    if rope.get("mrope_section") is None:
        return 11, 11, 10  # what the architecture means where the file is silent
    match items(rope, "mrope_section"):
        case [int(time), int(height), int(width)] if all(
            0 <= lanes <= MOST for lanes in (time, height, width)
        ):
            return time, height, width
        case other:
            raise UnsupportedModel(
                f"mrope_section must be three whole numbers from 0 to {MOST:,}, not {other!r}"
            )


def _has_mtp(text: Fields) -> bool:
    layers = text.get("mtp_num_hidden_layers") or 0
    if layers not in (0, 1):
        raise UnsupportedModel(f"mtp_num_hidden_layers is {layers!r} but must be 0 or 1")
    return bool(layers)


def _end_tokens(*files: Fields) -> tuple[int, ...]:
    tokens: list[int] = []
    for fields in files:
        value = fields.get("eos_token_id")
        for token in items(fields, "eos_token_id") if isinstance(value, list) else (value,):
            if token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool):
                raise UnsupportedModel(f"eos_token_id must be token ids, not {token!r}")
            tokens.append(token)
    return tuple(dict.fromkeys(tokens))

"""The dimensions of a DFlash2 draft model, read from its config.json and checked. Knows no weights.

A draft model of another form, or one trained for another target, is refused by the name of the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkle.errors import UnsupportedModel
from sparkle.model.config import ModelConfig
from sparkle.model.config_fields import Fields, check_fields, items, number, read_json, section, size

MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 2, 16
"""The anchor, which is the last written token, and the rows of a draft behind it."""

ARCHITECTURE = "DFlash2DraftModel"

FIXED: Fields = {
    "architectures": [ARCHITECTURE],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "is_causal": False,
    "use_sliding_window": True,
    "tie_word_embeddings": False,
    "rope_scaling": None,
}
READ = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "layer_types",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rope_parameters",
        "rope_theta",
        "rms_norm_eps",
        "sliding_window",
        "num_target_layers",
        "dflash_config",
    }
)
IGNORED = frozenset(
    {
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_position_embeddings",
        "max_window_layers",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields that change no draft."""

DRAFT_FIXED: Fields = {
    "conv_kernel_size": 2,
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": 0.0,
}
DRAFT_READ = frozenset(
    {"block_size", "conv_group_size", "mask_token_id", "selector_rank", "selector_top_k", "target_layer_ids"}
)
ROPE_FIXED: Fields = {"rope_type": "default", "type": "default"}
ROPE_READ = frozenset({"rope_theta"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """The sizes of a draft model. Raises UnsupportedModel where they do not fit together."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """All of it turns with the position."""

    window: int
    """Positions that a row sees before it, its own among them; rows of its block it sees all."""

    rope_theta: float
    rms_norm_eps: float
    num_target_layers: int
    target_layers: tuple[int, ...]
    """Layers of the target whose outputs are read, the first is 0; one behind the other in this order."""

    block_rows: int
    """Rows of a block as trained; others may be asked for."""

    mask_token: int
    conv_group: int
    """Neighbouring channels that a convolution's dynamic taps share."""

    selector_rank: int
    candidates: int
    """Likeliest tokens of a row that the path is chosen among."""

    def __post_init__(self) -> None:
        for many, few in (("num_heads", "num_kv_heads"), ("hidden_size", "conv_group")):
            if getattr(self, many) % getattr(self, few):
                raise UnsupportedModel(
                    f"{many} is {getattr(self, many)} but must be a multiple of {few}, {getattr(self, few)}"
                )
        for name, low, high in (
            ("head_dim", 2, None),
            ("window", MAX_BLOCK_ROWS, None),
            ("block_rows", MIN_BLOCK_ROWS, MAX_BLOCK_ROWS),
            ("mask_token", 0, self.vocab_size - 1),
            ("candidates", 1, self.vocab_size),
        ):
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise UnsupportedModel(
                    f"{name} is {value} but must be at least {low}"
                    + ("" if high is None else f" and at most {high}")
                )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim is {self.head_dim} but must be even")
        beyond = [layer for layer in self.target_layers if not 0 <= layer < self.num_target_layers]
        if beyond or not self.target_layers or len(set(self.target_layers)) != len(self.target_layers):
            raise UnsupportedModel(
                f"target_layer_ids gives {list(self.target_layers)} "
                f"but needs different layers from 0 to {self.num_target_layers - 1}"
            )

    @property
    def query_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def taps_size(self) -> int:
        """Width of the outputs of all tapped layers."""
        return len(self.target_layers) * self.hidden_size

    @property
    def conv_groups(self) -> int:
        return self.hidden_size // self.conv_group


def read_dflash_config(directory: Path, target: ModelConfig) -> DFlashConfig:
    """The dimensions in `directory`/config.json of a draft model for `target`, whose embedding it uses.

    Raises UnsupportedModel naming the field that is missing, unknown, of another form than in a DFlash2 model
    or unlike the target's, and CheckpointError where the file cannot be read.
    """
    top = read_json(directory / "config.json")
    check_fields("", top, fixed=FIXED, others=READ | IGNORED)
    if top.get("architectures") is None:
        raise UnsupportedModel(f"architectures is missing but must be {[ARCHITECTURE]!r}")
    if top.get("is_causal") is None:
        raise UnsupportedModel("is_causal is missing but must be False")
    draft = section(top, "dflash_config")
    check_fields("dflash_config.", draft, fixed=DRAFT_FIXED, others=DRAFT_READ)
    config = DFlashConfig(
        vocab_size=size(top, "vocab_size"),
        hidden_size=size(top, "hidden_size"),
        intermediate_size=size(top, "intermediate_size"),
        num_layers=_num_layers(top),
        num_heads=size(top, "num_attention_heads"),
        num_kv_heads=size(top, "num_key_value_heads"),
        head_dim=size(top, "head_dim"),
        window=size(top, "sliding_window"),
        rope_theta=_rope_theta(top),
        rms_norm_eps=number(top, "rms_norm_eps"),
        num_target_layers=size(top, "num_target_layers"),
        target_layers=_target_layers(draft),
        block_rows=size(draft, "block_size"),
        mask_token=size(draft, "mask_token_id"),
        conv_group=size(draft, "conv_group_size"),
        selector_rank=size(draft, "selector_rank"),
        candidates=size(draft, "selector_top_k"),
    )
    _require_target(config, target)
    return config


def _num_layers(top: Fields) -> int:
    num_layers = size(top, "num_hidden_layers")
    names = items(top, "layer_types")
    if list(names) != ["sliding_attention"] * num_layers:
        raise UnsupportedModel(
            f"layer_types must be {num_layers} times 'sliding_attention', not {list(names)!r}"
        )
    return num_layers


def _rope_theta(top: Fields) -> float:
    """Newer files have it in rope_parameters, older ones at the top."""
    if top.get("rope_parameters") is None:
        return number(top, "rope_theta")
    rope = section(top, "rope_parameters")
    check_fields("rope_parameters.", rope, fixed=ROPE_FIXED, others=ROPE_READ)
    theta = number(rope, "rope_theta")
    if top.get("rope_theta") is not None and number(top, "rope_theta") != theta:
        raise UnsupportedModel(f"rope_theta is {number(top, 'rope_theta')} but {theta} in rope_parameters")
    return theta


def _target_layers(draft: Fields) -> tuple[int, ...]:
    layers = items(draft, "target_layer_ids")
    found = tuple(layer for layer in layers if isinstance(layer, int) and not isinstance(layer, bool))
    if len(found) != len(layers):
        raise UnsupportedModel(f"target_layer_ids must be whole numbers, not {list(layers)!r}")
    return found


def _require_target(config: DFlashConfig, target: ModelConfig) -> None:
    for name, ours, theirs in (
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("num_target_layers", config.num_target_layers, target.num_layers),
    ):
        if ours != theirs:
            raise UnsupportedModel(f"{name} is {ours} but the model it drafts for has {theirs}")

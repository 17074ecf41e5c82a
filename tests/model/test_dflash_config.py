"""config.json of a DFlash2 model: the published form is read in full, any other is refused by the field."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from sparkle.errors import CheckpointError, UnsupportedModel
from sparkle.model.dflash_config import DFlashConfig, read_dflash_config
from sparkle.model.shapes import shape_27b, shape_dflash_27b
from tests.model.checkpoint_files import Json, write_fields

# of a draft model for Qwen3.8-27B
PUBLISHED: Json = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 17408,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 262144,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 64,
    "pad_token_id": 248044,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "transformers_version": "5.8.1",
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 248320,
}


def read(directory: Path, fields: Json) -> DFlashConfig:
    write_fields(directory / "config.json", fields)
    return read_dflash_config(directory, shape_27b())


def test_the_published_form_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, PUBLISHED) == shape_dflash_27b()


def test_older_files_have_rope_theta_at_the_top(tmp_path: Path) -> None:
    older = {name: value for name, value in PUBLISHED.items() if name != "rope_parameters"}
    assert read(tmp_path, {**older, "rope_theta": 1e7, "rope_scaling": None}) == shape_dflash_27b()


def test_what_would_change_nothing_is_taken(tmp_path: Path) -> None:
    fields = copy.deepcopy(PUBLISHED)
    fields["dflash_config"] |= {
        "output_multiplier": 1.0,
        "input_embedding_scale": 1,
        "final_logit_softcapping": None,
    }
    assert read(tmp_path, fields) == shape_dflash_27b()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("architectures", ["DFlashDraftModel"]),
        ("architectures", None),
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("is_causal", True),
        ("is_causal", None),
        ("use_sliding_window", False),
        ("tie_word_embeddings", True),
        ("rope_scaling", {"type": "yarn", "factor": 4}),
        ("rope_theta", 1e4),
        ("rope_parameters.rope_type", "yarn"),
        ("rope_parameters.factor", 2.0),
        ("layer_types", ["sliding_attention"] * 4 + ["full_attention"]),
        ("layer_types", ["sliding_attention"] * 4),
        ("sliding_window", None),
        ("sliding_window", 15),
        ("num_hidden_layers", 0),
        ("num_key_value_heads", 5),
        ("head_dim", 127),
        ("block_size", 8),
        ("markov_rank", 256),
        ("vocab_size", 248319),
        ("hidden_size", 4096),
        ("num_target_layers", 62),
        ("dflash_config", None),
        ("dflash_config.conv_kernel_size", 3),
        ("dflash_config.conv_group_size", 48),
        ("dflash_config.block_size", 1),
        ("dflash_config.block_size", 17),
        ("dflash_config.selector_rank", None),
        ("dflash_config.selector_top_k", 0),
        ("dflash_config.mask_token_id", 248320),
        ("dflash_config.target_layer_ids", [5, 64]),
        ("dflash_config.target_layer_ids", [5, 5]),
        ("dflash_config.target_layer_ids", []),
        ("dflash_config.target_layer_ids", ["5"]),
        ("dflash_config.output_multiplier", 0.5),
        ("dflash_config.input_embedding_scale", 2.0),
        ("dflash_config.final_logit_softcapping", 30.0),
        ("dflash_config.sample_from_anchor", True),
    ],
)
def test_another_form_is_refused_by_the_name_of_the_field(tmp_path: Path, place: str, value: object) -> None:
    fields = copy.deepcopy(PUBLISHED)
    *outer, name = place.split(".")
    (fields[outer[0]] if outer else fields)[name] = value
    with pytest.raises(UnsupportedModel, match=NAMES.get(name, name)):
        read(tmp_path, fields)


NAMES = {
    "sliding_window": "window",
    "block_size": "block_rows|block_size",
    "selector_top_k": "candidates|selector_top_k",
    "mask_token_id": "mask_token",
    "conv_group_size": "conv_group",
    "num_key_value_heads": "num_kv_heads",
}
"""Sizes that do not fit together are named as in DFlashConfig."""


def test_a_draft_model_for_another_target_is_refused(tmp_path: Path) -> None:
    write_fields(tmp_path / "config.json", PUBLISHED)
    target = dataclasses.replace(shape_27b(), hidden_size=2560)
    with pytest.raises(UnsupportedModel, match="hidden_size is 5120 but the model it drafts for has 2560"):
        read_dflash_config(tmp_path, target)


@pytest.mark.parametrize("text", ["", "[]", json.dumps("text")])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_dflash_config(tmp_path, shape_27b())

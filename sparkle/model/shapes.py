"""The sizes of the model that is served, and of the small one in this package. Knows no torch."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from sparkle.model.config import LayerType, ModelConfig, read_config
from sparkle.model.dflash_config import DFlashConfig

LAYERS_27B = 64
FULL_EVERY = 4
"""Every fourth layer is full attention, the first such layer the fourth."""


def shape_27b() -> ModelConfig:
    """The sizes of Qwen3.8-27B, as published in its config.json and generation_config.json."""
    return ModelConfig(
        name="Qwen3.8-27B-FP8",
        vocab_size=248_320,
        hidden_size=5120,
        intermediate_size=17_408,
        layer_types=tuple(
            LayerType.LINEAR if layer % FULL_EVERY else LayerType.FULL for layer in range(1, LAYERS_27B + 1)
        ),
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
        max_context_tokens=262_144,
        end_tokens=(248_046, 248_044),
        has_mtp=True,
    )


def shape_dflash_27b() -> DFlashConfig:
    """The sizes of the DFlash2 draft model for Qwen3.8-27B."""
    return DFlashConfig(
        vocab_size=248_320,
        hidden_size=5120,
        intermediate_size=17_408,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        window=2048,
        rope_theta=1e7,
        rms_norm_eps=1e-6,
        num_target_layers=LAYERS_27B,
        target_layers=(5, 19, 33, 47, 61),
        block_rows=8,
        mask_token=248_070,
        conv_group=16,
        selector_rank=256,
        candidates=16,
    )


def shape_tiny() -> ModelConfig:
    """The sizes of sparkle-tiny, read from where it is."""
    return read_config(bundled_checkpoint())


def bundled_checkpoint() -> Path:
    """The directory of sparkle-tiny in this package."""
    return Path(str(resources.files("sparkle") / "checkpoints" / "sparkle-tiny"))


def bundled_draft_model() -> Path:
    """The directory of sparkle-tiny's DFlash2 draft model in this package."""
    return bundled_checkpoint().with_name("sparkle-tiny-dflash2")

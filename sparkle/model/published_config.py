"""A model's sizes as the files config.json and generation_config.json hold them. Knows no weights.

The inverse of sparkle.model.config.read_config, in the form of the published FP8 checkpoint, without a vision
tower.
"""

from __future__ import annotations

from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.config_fields import FIXED, QUANTISATION_FIXED, Fields

UNQUANTISED = ("conv1d", "in_proj_a", "in_proj_b")


def config_json(config: ModelConfig) -> Fields:
    """What config.json holds."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "language_model_only": True,
        "model_type": "qwen3_5",
        "quantization_config": {**QUANTISATION_FIXED, "modules_to_not_convert": _unquantised(config)},
        "text_config": _text_config(config),
        "tie_word_embeddings": False,
    }


def generation_json(config: ModelConfig) -> Fields:
    """What generation_config.json holds."""
    return {
        "do_sample": True,
        "eos_token_id": list(config.end_tokens),
        "pad_token_id": config.end_tokens[-1],
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }


def _text_config(config: ModelConfig) -> Fields:
    rotary_share = config.rotary_dim / config.head_dim
    return {
        **FIXED,
        "dtype": "bfloat16",
        "eos_token_id": config.end_tokens[-1],
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": [kind.value for kind in config.layer_types],
        "linear_conv_kernel_dim": config.conv_width,
        "linear_key_head_dim": config.linear_key_dim,
        "linear_num_key_heads": config.linear_num_key_heads,
        "linear_num_value_heads": config.linear_num_value_heads,
        "linear_value_head_dim": config.linear_value_dim,
        "max_position_embeddings": config.max_context_tokens,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": int(config.has_mtp),
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "partial_rotary_factor": rotary_share,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": list(config.mrope_section),
            "partial_rotary_factor": rotary_share,
            "rope_theta": config.rope_theta,
            "rope_type": "default",
        },
        "vocab_size": config.vocab_size,
    }


def _unquantised(config: ModelConfig) -> list[str]:
    """Modules without scales, by their names in the wrapped form."""
    linear = [number for number, kind in enumerate(config.layer_types) if kind is LayerType.LINEAR]
    return [
        "lm_head",
        *(["mtp.fc"] if config.has_mtp else []),
        "model.language_model.embed_tokens",
        *(
            f"model.language_model.layers.{number}.linear_attn.{name}"
            for number in linear
            for name in UNQUANTISED
        ),
    ]

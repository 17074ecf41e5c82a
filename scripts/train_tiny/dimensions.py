"""The tiny model's sizes, and config.json made from them.

Head sizes are the real model's, so that the same kernels serve both. Knows no torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from scripts.train_tiny.vocabulary import VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes of a dense `qwen3_5` text model; the names are config.json's."""

    vocab_size: int = VOCAB_SIZE
    """Rows of the embedding and of the output head, which are not tied."""
    hidden_size: int = 256
    """Width of the residual stream."""
    intermediate_size: int = 512
    """Width of the gated MLP."""
    num_hidden_layers: int = 8
    """Layers; every `full_attention_interval`-th is full attention."""
    full_attention_interval: int = 4
    """Distance between two full-attention layers."""
    num_attention_heads: int = 6
    """Query heads of full attention."""
    num_key_value_heads: int = 1
    """Key and value heads of full attention."""
    head_dim: int = 256
    """Width of an attention head."""
    linear_num_key_heads: int = 2
    """Query and key heads of a Gated DeltaNet layer."""
    linear_num_value_heads: int = 6
    """Value heads of a Gated DeltaNet layer."""
    linear_head_dim: int = 128
    """Width of a key head and of a value head of Gated DeltaNet."""
    linear_conv_kernel_dim: int = 4
    """Taps of the causal convolution."""
    rotary_dim: int = 64
    """Leading dimensions of a head that the rotary embedding turns."""
    rope_theta: float = 1e7
    """Base of the rotary frequencies."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square in every norm."""
    max_position_embeddings: int = 8192
    """Longest sequence the checkpoint allows, tokens."""

    @property
    def layer_types(self) -> tuple[str, ...]:
        """`linear_attention` or `full_attention` for each layer."""
        return tuple(
            "linear_attention" if (layer + 1) % self.full_attention_interval else "full_attention"
            for layer in range(self.num_hidden_layers)
        )

    @property
    def linear_key_width(self) -> int:
        """All key heads of a Gated DeltaNet layer side by side."""
        return self.linear_num_key_heads * self.linear_head_dim

    @property
    def linear_value_width(self) -> int:
        """All value heads of a Gated DeltaNet layer side by side."""
        return self.linear_num_value_heads * self.linear_head_dim

    @property
    def linear_qkv_width(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.linear_key_width + self.linear_value_width


FP8_BLOCK = 128
"""Rows and columns that share one scale."""


def text_config(sizes: Dimensions, end_of_text: int) -> dict[str, object]:
    """The `text_config` block of config.json."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": end_of_text,
        "dtype": "bfloat16",
        "eos_token_id": end_of_text,
        "full_attention_interval": sizes.full_attention_interval,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "layer_types": list(sizes.layer_types),
        "linear_conv_kernel_dim": sizes.linear_conv_kernel_dim,
        "linear_key_head_dim": sizes.linear_head_dim,
        "linear_num_key_heads": sizes.linear_num_key_heads,
        "linear_num_value_heads": sizes.linear_num_value_heads,
        "linear_value_head_dim": sizes.linear_head_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": sizes.max_position_embeddings,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": sizes.num_attention_heads,
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_key_value_heads": sizes.num_key_value_heads,
        "output_gate_type": "swish",
        "pad_token_id": None,
        "partial_rotary_factor": sizes.rotary_dim / sizes.head_dim,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": sizes.rotary_dim / sizes.head_dim,
            "rope_theta": sizes.rope_theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": sizes.vocab_size,
    }


def write_configs(sizes: Dimensions, folder: Path, token_ids: dict[str, int]) -> None:
    """Write config.json and generation_config.json; `token_ids` gives the added tokens' ids."""
    end_of_text, end_of_turn = token_ids["<|endoftext|>"], token_ids["<|im_end|>"]
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "image_token_id": token_ids["<|image_pad|>"],
        "language_model_only": True,
        "model_type": "qwen3_5",
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [
                "lm_head",
                "mtp.fc",
                "model.language_model.embed_tokens",
                *(
                    f"model.language_model.layers.{layer}.linear_attn.{name}"
                    for layer, kind in enumerate(sizes.layer_types)
                    if kind == "linear_attention"
                    for name in ("conv1d", "in_proj_a", "in_proj_b")
                ),
            ],
            "quant_method": "fp8",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        },
        "text_config": text_config(sizes, end_of_text),
        "tie_word_embeddings": False,
        "video_token_id": token_ids["<|video_pad|>"],
        "vision_end_token_id": token_ids["<|vision_end|>"],
        "vision_start_token_id": token_ids["<|vision_start|>"],
    }
    generation = {
        "bos_token_id": end_of_text,
        "do_sample": True,
        "eos_token_id": [end_of_turn, end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")

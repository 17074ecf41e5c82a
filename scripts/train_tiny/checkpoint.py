"""Weights to a block-scaled FP8 checkpoint in the real model's form, and back.

Knows names and dtypes of tensors; knows nothing of how they were trained.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from scripts.train_tiny.dimensions import FP8_BLOCK, Dimensions

E4M3_MAX = 448.0

_FP8_MODULES = (
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "out_proj"),
)
_F32_TENSORS = ("linear_attn.A_log", "linear_attn.norm.weight")


def is_fp8(name: str) -> bool:
    """Whether the tensor of this name is stored in FP8 with block scales."""
    return name.endswith(".weight") and name.split(".")[-2] in _FP8_MODULES


def tensor_shapes(sizes: Dimensions) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight (scales not counted), in checkpoint order."""
    hidden, heads = sizes.hidden_size, sizes.num_attention_heads
    query, key = heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
    linear: dict[str, tuple[int, ...]] = {
        "linear_attn.in_proj_qkv.weight": (sizes.linear_qkv_width, hidden),
        "linear_attn.in_proj_z.weight": (sizes.linear_value_width, hidden),
        "linear_attn.in_proj_b.weight": (sizes.linear_num_value_heads, hidden),
        "linear_attn.in_proj_a.weight": (sizes.linear_num_value_heads, hidden),
        "linear_attn.conv1d.weight": (sizes.linear_qkv_width, 1, sizes.linear_conv_kernel_dim),
        "linear_attn.A_log": (sizes.linear_num_value_heads,),
        "linear_attn.dt_bias": (sizes.linear_num_value_heads,),
        "linear_attn.norm.weight": (sizes.linear_head_dim,),
        "linear_attn.out_proj.weight": (hidden, sizes.linear_value_width),
    }
    full: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (2 * query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (sizes.head_dim,),
        "self_attn.k_norm.weight": (sizes.head_dim,),
    }
    shared: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (sizes.intermediate_size, hidden),
        "mlp.up_proj.weight": (sizes.intermediate_size, hidden),
        "mlp.down_proj.weight": (hidden, sizes.intermediate_size),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.language_model.embed_tokens.weight": (sizes.vocab_size, hidden)
    }
    for layer, kind in enumerate(sizes.layer_types):
        mixer = linear if kind == "linear_attention" else full
        for name, shape in {**shared, **mixer}.items():
            shapes[f"model.language_model.layers.{layer}.{name}"] = shape
    shapes["model.language_model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (sizes.vocab_size, hidden)
    return shapes


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 weight [N, K] and BF16 scales [N/128, K/128]; a weight is its FP8 value times its block's scale."""
    rows, columns = weight.shape
    blocks = weight.float().reshape(rows // FP8_BLOCK, FP8_BLOCK, columns // FP8_BLOCK, FP8_BLOCK)
    # the scale is rounded before it is used, so that rounding it costs nothing
    scales = (blocks.abs().amax(dim=(1, 3)) / E4M3_MAX).clamp(min=1e-12).to(torch.bfloat16)
    scaled = (blocks / scales.float()[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.reshape(rows, columns).to(torch.float8_e4m3fn), scales


def dequantise(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Float32 weight [N, K] of an FP8 weight [N, K] and its scales [N/128, K/128]."""
    spread = scales.float().repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return weight.float() * spread


def save_weights(weights: dict[str, torch.Tensor], sizes: Dimensions, folder: Path) -> None:
    """Write model.safetensors from float32 weights named and shaped as `tensor_shapes` says."""
    stored: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(sizes).items():
        weight = weights[name].detach().cpu().float()
        assert tuple(weight.shape) == shape, name
        if is_fp8(name):
            stored[name], stored[f"{name}_scale_inv"] = quantise(weight)
        else:
            dtype = torch.float32 if name.endswith(_F32_TENSORS) else torch.bfloat16
            stored[name] = weight.to(dtype)
    save_file(
        {name: tensor.contiguous() for name, tensor in stored.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The checkpoint's weights in float32, FP8 ones dequantised."""
    stored = load_file(folder / "model.safetensors")
    return {
        name: dequantise(tensor, stored[f"{name}_scale_inv"]) if is_fp8(name) else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith("_scale_inv")
    }

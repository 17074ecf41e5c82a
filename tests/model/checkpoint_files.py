"""Reads and writes the files of a checkpoint, so that tests can change one thing in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import (
    load_file,  # pyright: ignore[reportUnknownVariableType] (its path is of bytes or str, unknown which)
    save_file,  # pyright: ignore[reportUnknownVariableType] (the same)
)
from torch import Tensor

Tensors = dict[str, Tensor]
Json = dict[str, Any]

# the projections that the published FP8 checkpoints hold in blocks
QUANTISED = (
    "in_proj_qkv.weight",
    "in_proj_z.weight",
    "out_proj.weight",
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "o_proj.weight",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
)


def read_tensors(directory: Path, shard: str = "model.safetensors") -> Tensors:
    """All tensors of an unsharded checkpoint, or of one shard."""
    return load_file(directory / shard)


def write_tensors(directory: Path, tensors: Tensors) -> None:
    """Replace the tensors of an unsharded checkpoint."""
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors"
    )


def read_fields(path: Path) -> Json:
    """A JSON file."""
    return cast(Json, json.loads(path.read_text(encoding="utf-8")))


def write_fields(path: Path, fields: Json) -> None:
    """Replace a JSON file."""
    path.write_text(json.dumps(fields), encoding="utf-8")


def quantise(tensors: Tensors, scale_dtype: torch.dtype) -> Tensors:
    """The FP8 form of the checkpoint: each block's largest value becomes 448, the largest of the format."""
    result = dict(tensors)
    for name, weight in tensors.items():
        if not name.endswith(QUANTISED):
            continue
        stored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        scales = torch.empty([-(-size // 128) for size in weight.shape], dtype=scale_dtype)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                scales[i, j] = weight[block].abs().max() / 448
                stored[block] = (weight[block] / scales[i, j].float()).clamp(-448, 448).to(stored.dtype)
        result[name] = stored
        result[name + "_scale_inv"] = scales
    return result


def dequantise(tensors: Tensors) -> Tensors:
    """The same values as `quantise` gave, in float32 and without scales."""
    result: Tensors = {}
    for name, weight in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        result[name] = weight.float()
        for (i, j), scale in _blocks(tensors.get(name + "_scale_inv")):
            result[name][128 * i : 128 * i + 128, 128 * j : 128 * j + 128] *= scale
    return result


def _blocks(scales: Tensor | None) -> list[tuple[tuple[int, int], float]]:
    if scales is None:
        return []
    return [((i, j), float(scales[i, j])) for i in range(scales.shape[0]) for j in range(scales.shape[1])]

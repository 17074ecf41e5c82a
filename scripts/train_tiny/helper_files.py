"""Writes the helpers as they are published, and their model card.

The head is a shard of the model's checkpoint, the block draft model a directory of its own. Knows nothing of
how they were trained.
"""

import json
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from scripts.train_tiny.block_draft import BlockDraft, BlockSizes
from scripts.train_tiny.checkpoint import is_fp8, quantise
from scripts.train_tiny.draft_head import DraftHead

HEAD_FILE = "mtp.safetensors"
MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def write_helper_card(report: dict[str, Any], folder: Path, *, parameters: dict[str, int]) -> None:
    """Write README.md of the draft model from what the helpers stage reported."""
    settings: dict[str, int] = report["settings"]
    curves = {"MTP head": report["head"], "DFlash2": report["block"]}
    values = {
        **{name: f"{number:,}" for name, number in settings.items() if name != "seed"},
        **{f"{name}_parameters": f"{number / 1e6:.1f} million" for name, number in parameters.items()},
        "seed": settings["seed"],
        "layers": ", ".join(map(str, BlockSizes().target_layer_ids)),
        "curve": "\n".join(
            f"| {helper} | {point['step']:,} | {point['loss']:.3f} | {point['kept']:.2f} |"
            for helper, curve in curves.items()
            for point in curve
        ),
        **{name: report[name] for name in ("device", "date", "torch", "total_s")},
    }
    template = Template(Path(__file__).with_name("helper_card.md").read_text())
    (folder / "README.md").write_text(template.substitute(values))


def save_head(head: DraftHead, folder: Path) -> None:
    """Write the head beside the model in `folder`, and the index of both files."""
    stored: dict[str, Tensor] = {}
    for name, parameter in head.named_parameters():
        weight = parameter.detach().float().cpu()
        if is_fp8(name):
            stored[f"mtp.{name}"], stored[f"mtp.{name}_scale_inv"] = quantise(weight)
        else:
            stored[f"mtp.{name}"] = weight.to(torch.bfloat16)
    _save(stored, folder / HEAD_FILE)
    files = (folder / MODEL_FILE, folder / HEAD_FILE)
    places = {name: file.name for file in files for name in _names(file)}
    # as in published checkpoints: the bytes of the tensors, not of the files
    total = sum(_tensor_bytes(file) for file in files)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def save_block_draft(draft: BlockDraft, folder: Path) -> None:
    """Write config.json and model.safetensors of the draft model to `folder`."""
    stored: dict[str, Tensor] = {}
    for name, parameter in draft.named_parameters():
        weight = parameter.detach().float().cpu()
        if name == "fc.weight":
            weight = weight / draft.spread.float().cpu()
        if name.endswith("norm.weight"):
            # the published files hold a norm's factors, not what is added to one
            weight = weight + 1.0
        stored[name] = weight.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    _save(stored, folder / MODEL_FILE)
    (folder / "config.json").write_text(json.dumps(_block_config(draft.sizes), indent=2) + "\n")


def _block_config(sizes: BlockSizes) -> dict[str, object]:
    fields: dict[str, object] = asdict(sizes)
    draft = {
        "block_size": fields.pop("block_size"),
        "conv_group_size": fields.pop("conv_group_size"),
        "conv_kernel_size": 2,
        "mask_token_id": fields.pop("mask_token_id"),
        "selector_rank": fields.pop("selector_rank"),
        "selector_top_k": fields.pop("selector_top_k"),
        "target_layer_ids": list(sizes.target_layer_ids),
    }
    del fields["target_layer_ids"], fields["rope_theta"]
    return {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dflash_config": draft,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "is_causal": False,
        "layer_types": ["sliding_attention"] * sizes.num_hidden_layers,
        "max_position_embeddings": 8192,
        "model_type": "qwen3",
        "rope_parameters": {"rope_theta": sizes.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_sliding_window": True,
        **fields,
    }


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"}
    )


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        names: list[str] = tensors.keys()
        return names


def _tensor_bytes(file: Path) -> int:
    with file.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    return file.stat().st_size - 8 - header

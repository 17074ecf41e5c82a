"""A plain transcription of the DFlash2 equations in float64, without a cache, and directories to load.

As in the package dflash 0.1.0, model.py: the whole context is computed anew for each draft.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.model.config import ModelConfig
from sparkle.model.shapes import shape_tiny
from tests.model.checkpoint_files import Json, Tensors, write_fields, write_tensors

EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashShape:
    """The sizes that a test chooses; names as in config.json."""

    vocab_size: int = 131
    hidden_size: int = 48
    intermediate_size: int = 80
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    sliding_window: int = 24
    rope_theta: float = 1e4
    num_target_layers: int = 9
    block_size: int = 8
    conv_group_size: int = 8
    mask_token_id: int = 130
    selector_rank: int = 12
    selector_top_k: int = 6
    target_layer_ids: Sequence[int] = (1, 4, 6)

    def config_json(self) -> Json:
        """What the published config.json holds, with these sizes."""
        return {
            "architectures": ["DFlash2DraftModel"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "dflash_config": {
                "block_size": self.block_size,
                "conv_group_size": self.conv_group_size,
                "conv_kernel_size": 2,
                "mask_token_id": self.mask_token_id,
                "selector_rank": self.selector_rank,
                "selector_top_k": self.selector_top_k,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "dtype": "bfloat16",
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "is_causal": False,
            "layer_types": ["sliding_attention"] * self.num_hidden_layers,
            "max_position_embeddings": 262144,
            "max_window_layers": self.num_hidden_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "num_target_layers": self.num_target_layers,
            "pad_token_id": 1,
            "rms_norm_eps": EPS,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": False,
            "transformers_version": "5.8.1",
            "use_cache": True,
            "use_sliding_window": True,
            "vocab_size": self.vocab_size,
        }


@dataclass(frozen=True, slots=True)
class DFlashReference:
    """Random weights of a shape in float32, and what they draft; embedding and lm_head are the target's."""

    shape: DFlashShape
    seed: int = 0
    tensors: Tensors = field(init=False)
    embedding: Tensor = field(init=False)
    lm_head: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        size = (self.shape.vocab_size, self.shape.hidden_size)
        object.__setattr__(self, "tensors", _random_tensors(self.shape, generator))
        object.__setattr__(self, "embedding", torch.randn(size, generator=generator))
        head = 3 * torch.randn(size, generator=generator) / size[1] ** 0.5
        object.__setattr__(self, "lm_head", head)

    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors."""
        write_fields(directory / "config.json", self.shape.config_json())
        write_tensors(directory, self.tensors)

    def draft(
        self,
        outputs: Tensor,
        anchor: int,
        rows: int,
        *,
        temperature: float = 0.0,
        chances: Sequence[float] = (),
    ) -> list[int]:
        """The tokens behind `anchor`, of which the target put out `outputs` [context, taps · hidden].

        At a temperature each is drawn by its chance, the likeliest first.
        """
        context = self._norm(outputs.double() @ self._get("fc.weight").T, "hidden_norm")
        ids = torch.tensor([anchor] + [self.shape.mask_token_id] * (rows - 1))
        hidden = self.embedding.double()[ids]
        for layer in range(self.shape.num_hidden_layers):
            hidden = self._layer(f"layers.{layer}", hidden, context)
        x = self._norm(hidden, "norm")[1:]
        return self._path(x, x @ self.lm_head.double().T, anchor, temperature, chances)

    def _layer(self, prefix: str, hidden: Tensor, context: Tensor) -> Tensor:
        x = self._norm(hidden, f"{prefix}.input_layernorm")
        taps = self._taps(f"{prefix}.attention_conv", x)
        x = self._attention(f"{prefix}.self_attn", convolved(x, taps[0]), context)
        hidden = hidden + convolved(x, taps[1])
        x = self._norm(hidden, f"{prefix}.post_attention_layernorm")
        taps = self._taps(f"{prefix}.mlp_conv", x)
        x = convolved(x, taps[0])
        inner = F.silu(self._linear(f"{prefix}.mlp.gate_proj", x)) * self._linear(f"{prefix}.mlp.up_proj", x)
        return hidden + convolved(self._linear(f"{prefix}.mlp.down_proj", inner), taps[1])

    def _taps(self, prefix: str, x: Tensor) -> Tensor:
        """[side, tap, row, channel]."""
        base = self._get(f"{prefix}.base_kernel")
        dynamic = self._linear(f"{prefix}.kernel_projection", x).view(len(x), 2, 2, -1)
        dynamic = dynamic.repeat_interleave(self.shape.conv_group_size, dim=3)
        return base[:, :, None] + dynamic.permute(1, 2, 0, 3)

    def _attention(self, prefix: str, x: Tensor, context: Tensor) -> Tensor:
        shape = self.shape
        positions = torch.arange(len(context) + len(x))
        both = torch.cat((context, x))
        query = self._norm(self._heads(f"{prefix}.q_proj", x), f"{prefix}.q_norm")
        key = self._norm(self._heads(f"{prefix}.k_proj", both), f"{prefix}.k_norm")
        value = self._heads(f"{prefix}.v_proj", both)
        query = self._rotated(query, positions[len(context) :])
        key = self._rotated(key, positions)
        distance = (positions[len(context) :, None] - positions[None]).abs()
        shared = shape.num_attention_heads // shape.num_key_value_heads
        out: list[Tensor] = []
        for head in range(shape.num_attention_heads):
            scores = query[:, head] @ key[:, head // shared].T / shape.head_dim**0.5
            scores[distance >= shape.sliding_window] = -torch.inf
            out.append(scores.softmax(dim=1) @ value[:, head // shared])
        return self._linear(f"{prefix}.o_proj", torch.cat(out, dim=1))

    def _heads(self, module: str, x: Tensor) -> Tensor:
        return self._linear(module, x).view(len(x), -1, self.shape.head_dim)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        lanes = self.shape.head_dim // 2
        angles = positions[:, None, None] * self.shape.rope_theta ** (-torch.arange(lanes).double() / lanes)
        first, second = x[..., :lanes], x[..., lanes:]
        turned = (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        )
        return torch.cat(turned, dim=-1)

    def _path(
        self, x: Tensor, logits: Tensor, anchor: int, temperature: float, chances: Sequence[float]
    ) -> list[int]:
        before = self._get("candidate_selector.predecessor_codebook")
        behind = self._get("candidate_selector.successor_codebook")
        own = self._linear("candidate_selector.hidden_projection", x)
        path = [anchor]
        for row in range(len(x)):
            values, ids = logits[row].topk(self.shape.selector_top_k)
            scores = values + behind[ids] @ (before[path[-1]] * own[row])
            place = int(scores.argmax())
            if temperature:
                places = scores.argsort(descending=True)
                total = (scores[places] / temperature).softmax(dim=0).cumsum(dim=0)
                place = next(int(i) for i, share in zip(places, total, strict=True) if share > chances[row])
            path.append(int(ids[place]))
        return path[1:]

    def _norm(self, x: Tensor, module: str) -> Tensor:
        scale = (x.square().mean(dim=-1, keepdim=True) + EPS).rsqrt()
        return x * scale * self._get(f"{module}.weight")

    def _linear(self, module: str, x: Tensor) -> Tensor:
        return x @ self._get(f"{module}.weight").T

    def _get(self, name: str) -> Tensor:
        return self.tensors[name].double()


def convolved(x: Tensor, taps: Tensor) -> Tensor:
    """x [rows, channels] by taps [2, rows, channels]: on the row itself, and on the one before it."""
    shifted = torch.cat((torch.zeros_like(x[:1]), x[:-1]))
    return taps[0] * x + taps[1] * shifted


def target_of(shape: DFlashShape) -> ModelConfig:
    """A target that a draft model of this shape may be for; only its sizes matter."""
    tiny = shape_tiny()
    layers = tuple(tiny.layer_types[0] for _ in range(shape.num_target_layers))
    return dataclasses.replace(
        tiny, vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, layer_types=layers, end_tokens=(1,)
    )


def _random_tensors(shape: DFlashShape, generator: torch.Generator) -> Tensors:
    hidden, inner, rank = shape.hidden_size, shape.intermediate_size, shape.selector_rank
    queries = shape.num_attention_heads * shape.head_dim
    kv = shape.num_key_value_heads * shape.head_dim
    tensors: Tensors = {}

    def normal(name: str, *size: int, mean: float = 0.0, spread: float) -> None:
        tensors[name] = mean + spread * torch.randn(size, generator=generator)

    def matrix(module: str, rows: int, columns: int, share: float = 1.0) -> None:
        normal(f"{module}.weight", rows, columns, spread=share / columns**0.5)

    def norm(module: str, width: int) -> None:
        normal(f"{module}.weight", width, mean=1.0, spread=0.2)

    matrix("fc", hidden, len(shape.target_layer_ids) * hidden)
    norm("hidden_norm", hidden)
    norm("norm", hidden)
    for number in range(shape.num_hidden_layers):
        layer = f"layers.{number}"
        norm(f"{layer}.input_layernorm", hidden)
        norm(f"{layer}.post_attention_layernorm", hidden)
        matrix(f"{layer}.self_attn.q_proj", queries, hidden)
        matrix(f"{layer}.self_attn.k_proj", kv, hidden)
        matrix(f"{layer}.self_attn.v_proj", kv, hidden)
        matrix(f"{layer}.self_attn.o_proj", hidden, queries)
        norm(f"{layer}.self_attn.q_norm", shape.head_dim)
        norm(f"{layer}.self_attn.k_norm", shape.head_dim)
        matrix(f"{layer}.mlp.gate_proj", inner, hidden)
        matrix(f"{layer}.mlp.up_proj", inner, hidden)
        matrix(f"{layer}.mlp.down_proj", hidden, inner)
        for conv in (f"{layer}.attention_conv", f"{layer}.mlp_conv"):
            normal(f"{conv}.base_kernel", 2, 2, hidden, mean=0.5, spread=0.3)
            matrix(f"{conv}.kernel_projection", 4 * (hidden // shape.conv_group_size), hidden, share=0.5)
    normal("candidate_selector.predecessor_codebook", shape.vocab_size, rank, spread=1.0)
    normal("candidate_selector.successor_codebook", shape.vocab_size, rank, spread=2.0 / rank**0.5)
    matrix("candidate_selector.hidden_projection", rank, hidden)
    return tensors

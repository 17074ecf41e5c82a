"""The draft head by its published equations, plainly, in float64: all rows at once and without a cache.

Written from vLLM's and SGLang's implementations, which agree; transformers has none for this architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.model.checkpoint_files import Tensors, read_fields, read_tensors, write_fields, write_tensors
from tests.model.published import Published, Shape, drawn

EPS = 1e-6
LAYER = "mtp.layers.0"


class PublishedMtp:
    """A published decoder, and a draft head for it with weights drawn from `seed`."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.decoder = Published(shape, seed)
        self._shape = shape
        generator = torch.Generator().manual_seed(1000 + seed)
        self._tensors = {name: drawn(name, size, generator) for name, size in mtp_shapes(shape).items()}
        self._parts: Tensors = {}

    def save(self, directory: Path) -> None:
        """Write the whole checkpoint: config.json and one file of tensors."""
        self.decoder.save(directory)
        tensors = read_tensors(directory)
        self._parts = {name: tensor.double() for name, tensor in (tensors | self._tensors).items()}
        write_tensors(directory, tensors | self._tensors)
        fields = read_fields(directory / "config.json")
        write_fields(directory / "config.json", fields | {"mtp_num_hidden_layers": 1})

    def outputs(self, hidden: Tensor, following: Sequence[int]) -> Tensor:
        """Float64 [T, hidden] after the head's norm: row i has `hidden` of token i and token i + 1."""
        embedded = self._parts["model.embed_tokens.weight"][list(following)]
        pair = torch.cat(
            (self._norm(embedded, "mtp.pre_fc_norm_embedding"), self._norm(hidden, "mtp.pre_fc_norm_hidden")),
            dim=1,
        )
        x = pair @ self._parts["mtp.fc.weight"].T
        x = x + self._attention(self._norm(x, f"{LAYER}.input_layernorm"))
        x = x + self._mlp(self._norm(x, f"{LAYER}.post_attention_layernorm"))
        return self._norm(x, "mtp.norm")

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs @ self._parts["lm_head.weight"].T

    def chain(
        self, tokens: Sequence[int], count: int, *, given: Sequence[int] = ()
    ) -> tuple[list[int], Tensor]:
        """`count` guesses behind `tokens`, the last of which the decoder has not read, and their logits.

        Where guesses are `given`, the logits are those behind them.
        """
        hidden = self.decoder.hidden(tokens[:-1])
        following = list(tokens[1:])
        logits: list[Tensor] = []
        for step in range(count):
            last = self.outputs(hidden, following)[-1:]
            logits.append(self.logits(last)[0])
            hidden = torch.cat((hidden, last))
            following.append(given[step] if given else int(logits[-1].argmax()))
        return following[len(tokens) - 1 :], torch.stack(logits)

    def _norm(self, x: Tensor, module: str) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add(EPS).rsqrt()
        return x * scale * (1 + self._parts[f"{module}.weight"])

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up, down = (self._parts[f"{LAYER}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _attention(self, x: Tensor) -> Tensor:
        shape, prefix = self._shape, f"{LAYER}.self_attn"
        heads, width, rows = shape.num_attention_heads, shape.head_dim, x.shape[0]
        shared = heads // shape.num_key_value_heads
        queries_and_gates = (x @ self._parts[f"{prefix}.q_proj.weight"].T).view(rows, heads, 2, width)
        query, gate = queries_and_gates.unbind(2)
        key, value = (
            (x @ self._parts[f"{prefix}.{name}_proj.weight"].T).view(rows, -1, width) for name in ("k", "v")
        )
        query = self._rotated(self._norm(query, f"{prefix}.q_norm"))
        key = self._rotated(self._norm(key, f"{prefix}.k_norm"))
        key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query, key) * width**-0.5
        unseen = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
        attended = torch.einsum("hij,jhd->ihd", weights, value) * gate.sigmoid()
        return attended.flatten(1) @ self._parts[f"{prefix}.o_proj.weight"].T

    def _rotated(self, x: Tensor) -> Tensor:
        """Row i at position i: the first dimensions of a head turn, in pairs (d, d + lanes)."""
        lanes = int(self._shape.head_dim * self._shape.partial_rotary_factor) // 2
        frequencies = self._shape.rope_theta ** -(torch.arange(lanes).double() / lanes)
        angles = torch.arange(x.shape[0]).double()[:, None, None] * frequencies
        first, second, rest = x.split_with_sizes((lanes, lanes, x.shape[2] - 2 * lanes), dim=2)
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines, rest), dim=2)


def mtp_shapes(shape: Shape) -> dict[str, torch.Size]:
    """The head's tensors."""
    hidden, inner, width = shape.hidden_size, shape.intermediate_size, shape.head_dim
    heads, kv_heads = shape.num_attention_heads * width, shape.num_key_value_heads * width
    sizes: dict[str, tuple[int, ...]] = {
        "mtp.fc": (hidden, 2 * hidden),
        "mtp.norm": (hidden,),
        "mtp.pre_fc_norm_embedding": (hidden,),
        "mtp.pre_fc_norm_hidden": (hidden,),
        f"{LAYER}.input_layernorm": (hidden,),
        f"{LAYER}.post_attention_layernorm": (hidden,),
        f"{LAYER}.self_attn.q_proj": (2 * heads, hidden),
        f"{LAYER}.self_attn.k_proj": (kv_heads, hidden),
        f"{LAYER}.self_attn.v_proj": (kv_heads, hidden),
        f"{LAYER}.self_attn.o_proj": (hidden, heads),
        f"{LAYER}.self_attn.q_norm": (width,),
        f"{LAYER}.self_attn.k_norm": (width,),
        f"{LAYER}.mlp.gate_proj": (inner, hidden),
        f"{LAYER}.mlp.up_proj": (inner, hidden),
        f"{LAYER}.mlp.down_proj": (hidden, inner),
    }
    return {f"{name}.weight": torch.Size(size) for name, size in sizes.items()}

"""The published implementation of the architecture, transformers', with random weights, run in float64.

Its own float32 rounding is larger than ours: it takes decays within a chunk as differences of running sums.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, cast
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCAB = 97
END_TOKEN = 1

# logits and outputs have a standard deviation of 1; the largest rounding seen was 2e-5, in the root mean
# square 7e-7, both in nine layers
WORST_ERROR = 1e-4
RMS_ERROR = 5e-6


def assert_close(got: Tensor, wanted: Tensor) -> None:
    """Ours is the published one's but for the rounding of float32."""
    assert got.dtype == torch.float32
    assert got.shape == wanted.shape
    error = (got - wanted).abs()
    assert bool(error.isfinite().all())
    assert error.max().item() < WORST_ERROR
    assert error.square().mean().sqrt().item() < RMS_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that a test chooses; names as in config.json."""

    num_hidden_layers: int = 4
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 6
    linear_key_head_dim: int = 16
    linear_value_head_dim: int = 16
    linear_conv_kernel_dim: int = 4
    hidden_size: int = 48
    intermediate_size: int = 72
    rope_theta: float = 1e4
    partial_rotary_factor: float = 0.25


class _Output(Protocol):
    logits: Tensor
    hidden_states: Sequence[Tensor] | None


class _Model(Protocol):
    """What these tests use of a transformers model."""

    def __call__(
        self, input_ids: Tensor, *, position_ids: Tensor, use_cache: bool, output_hidden_states: bool = False
    ) -> _Output: ...

    def generate(self, input_ids: Tensor, **options: object) -> Tensor: ...

    def named_parameters(self) -> Sequence[tuple[str, Tensor]]: ...

    def save_pretrained(self, directory: Path, *, max_shard_size: str) -> None: ...

    def double(self) -> _Model: ...

    def float(self) -> _Model: ...


class Published:
    """A model of `shape` with weights drawn from `seed`."""

    def __init__(self, shape: Shape, seed: int) -> None:
        sizes = asdict(shape)
        rope = {name: sizes.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
        config = Qwen3_5TextConfig(
            vocab_size=VOCAB,
            eos_token_id=END_TOKEN,
            max_position_embeddings=1024,
            rope_parameters={"rope_type": "default", **rope},
            **sizes,
        )
        self._model = cast(_Model, Qwen3_5ForCausalLM(config))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(drawn(name, parameter.shape, generator))

    def logits(self, tokens: Sequence[int], positions: Tensor | None = None) -> Tensor:
        """Float64 [T, vocab], all tokens at once and without a cache; positions [3, T], else as of text."""
        order = torch.arange(len(tokens))
        # four rows: the first orders the tokens, the others are their positions in time, height and width
        axes = torch.cat((order[None], order.expand(3, -1) if positions is None else positions))
        with self._in_float64():
            output = self._model(torch.tensor([tokens]), position_ids=axes[:, None], use_cache=False)
            logits: Tensor = output.logits
        return logits[0]

    def layer_outputs(self, tokens: Sequence[int]) -> list[Tensor]:
        """Float64 [T, hidden] behind each layer but the last, whose output it gives only normed."""
        # the first is the embedding
        return self._hidden_states(tokens)[1:-1]

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """Float64 [T, hidden]: what the logits are made of, after the final norm."""
        return self._hidden_states(tokens)[-1]

    def _hidden_states(self, tokens: Sequence[int]) -> list[Tensor]:
        positions = torch.arange(len(tokens)).expand(4, 1, -1)
        with self._in_float64():
            output = self._model(
                torch.tensor([tokens]), position_ids=positions, use_cache=False, output_hidden_states=True
            )
        assert output.hidden_states is not None
        return [states[0] for states in output.hidden_states]

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """The next `num_tokens` likeliest tokens of prompts of equal length, end tokens or not."""
        prompt = torch.tensor(prompts)
        with self._in_float64():
            whole = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=num_tokens,
                eos_token_id=-1,
                pad_token_id=0,
            )
        return [[int(token) for token in row] for row in whole[:, prompt.shape[1] :]]

    def save(self, directory: Path, *, max_shard_size: str = "1GB") -> None:
        """Write config.json and the tensors as transformers does."""
        self._model.save_pretrained(directory, max_shard_size=max_shard_size)

    @contextmanager
    def _in_float64(self) -> Generator[None]:
        """Also where the model's code asks for float32."""
        self._model.double()
        with (
            torch.no_grad(),
            patch.object(torch, "float32", torch.float64),
            patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            yield
        self._model.float()


def drawn(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Weights of ordinary size; what transformers starts at zero or one is drawn too, so that errors show."""
    normal = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return (0.05 + 16 * torch.rand(shape, generator=generator)).log()
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * normal
    if name.endswith("norm.weight"):
        return 0.3 * normal
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    if name.endswith(("dt_bias", "embed_tokens.weight")):
        return normal
    # what is added to the residual stream is made smaller, as in a trained model: else a stack of random
    # layers blows the rounding of single rows up a thousandfold
    share = 0.3 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) else 1.0
    return normal * share / math.sqrt(shape[-1])

"""The trained model token by token, many chats abreast: its own answers, and what its layers put out.

A chat's prompt is read in the same steps as its answer is written, one token a step: no second form of the
forward pass is needed, and thousands of chats abreast keep a GPU busy all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.train_tiny.model import Attention, DeltaNet, Layer, TinyModel, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """B chats of at most T tokens with the model's own answers."""

    tokens: Tensor  # int64 [B, T], anything behind a chat's end
    prompts: Tensor  # int64 [B], tokens of each prompt
    lengths: Tensor  # int64 [B], tokens of each chat
    taps: Tensor  # bfloat16 [B, T, layers · hidden], what the tapped layers put out, one behind the other


@torch.no_grad()
def answer(
    model: TinyModel,
    prompts: Tensor,
    lengths: Tensor,
    *,
    taps: Sequence[int],
    temperatures: Tensor,
    ends: Tensor,
    max_tokens: int,
) -> Answered:
    """Answers of at most `max_tokens` tokens, drawn at `temperatures` [B]; 0 takes the likeliest token.

    prompts int64 [B, P] of `lengths` int64 [B] tokens; an answer is over behind one of `ends`.
    """
    rows, device = prompts.shape[0], prompts.device
    tokens = F.pad(prompts, (0, max_tokens + 1))
    total = tokens.shape[1]
    stepper = _Stepper(model, rows, total)
    width = model.embed_tokens.embedding_dim
    outputs = torch.zeros(rows, total, len(taps) * width, dtype=torch.bfloat16, device=device)
    reached = lengths + max_tokens
    for position in range(total - 1):
        # a look at the device every so often: a chat that is over costs little
        if position % 16 == 0 and bool((reached <= position).all()):
            break
        tapped, hidden = stepper.step(tokens[:, position], position, taps)
        outputs[:, position] = tapped
        drawn = draw_tokens(model.logits(hidden).float(), temperatures)
        written = (position + 1 >= lengths) & (position + 1 < reached)
        tokens[:, position + 1] = torch.where(written, drawn, tokens[:, position + 1])
        over = written & torch.isin(drawn, ends)
        reached = torch.where(over, position + 2, reached)
    longest = int(reached.max())
    return Answered(
        tokens=tokens[:, :longest].clone(),
        prompts=lengths,
        lengths=reached,
        taps=outputs[:, :longest].clone(),
    )


def draw_tokens(logits: Tensor, temperatures: Tensor) -> Tensor:
    """One token a row, int64 [B]: the largest of the scores with Gumbel noise of the temperature's size."""
    noise = -torch.empty_like(logits).exponential_().log()
    return (logits + temperatures[:, None] * noise).argmax(dim=1)


class _Stepper:
    """What the layers keep of B chats that are all at the same position."""

    def __init__(self, model: TinyModel, rows: int, total: int) -> None:
        self._model = model
        self._layers = [layer for layer in model.layers if isinstance(layer, Layer)]
        self._mixers: list[_DeltaNetStep | _AttentionStep] = [
            _DeltaNetStep(layer.linear_attn, rows)
            if hasattr(layer, "linear_attn")
            else _AttentionStep(layer.self_attn, rows, total, model.dtype)
            for layer in self._layers
        ]

    def step(self, tokens: Tensor, position: int, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Outputs [B, layers · hidden] of the tapped layers, and of the last one, for tokens int64 [B]."""
        x = self._model.embed_tokens(tokens).to(self._model.dtype)
        taken: dict[int, Tensor] = {}
        for number, (layer, mixer) in enumerate(zip(self._layers, self._mixers, strict=True)):
            x = x + mixer.step(layer.input_layernorm(x), position)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            taken[number] = x
        return torch.cat([taken[layer] for layer in taps], dim=1), x


class _DeltaNetStep:
    """The gated delta rule of one token: see delta.py for the formula."""

    def __init__(self, mixer: DeltaNet, rows: int) -> None:
        sizes, device = mixer.sizes, mixer.A_log.device
        heads, width = sizes.linear_num_value_heads, sizes.linear_head_dim
        self._mixer = mixer
        self._state = torch.zeros(rows, heads, width, width, device=device)
        taps = sizes.linear_conv_kernel_dim
        self._columns = torch.zeros(rows, taps, sizes.linear_qkv_width, device=device)

    def step(self, x: Tensor, position: int) -> Tensor:
        mixer, sizes = self._mixer, self._mixer.sizes
        rows, head = x.shape[0], sizes.linear_head_dim
        self._columns = torch.cat((self._columns[:, 1:], mixer.in_proj_qkv(x).float()[:, None]), dim=1)
        mixed = F.silu((self._columns * mixer.conv1d.weight[:, 0].T).sum(1))
        key_width = sizes.linear_key_width
        query, key, value = (
            mixed[:, start:end].reshape(rows, -1, head)
            for start, end in ((0, key_width), (key_width, 2 * key_width), (2 * key_width, None))
        )
        group = sizes.linear_num_value_heads // sizes.linear_num_key_heads
        query = (unit(query) * head**-0.5).repeat_interleave(group, dim=1)
        key = unit(key).repeat_interleave(group, dim=1)
        strength = mixer.in_proj_b(x).float().sigmoid()[..., None]
        decay = (-mixer.A_log.exp() * F.softplus(mixer.in_proj_a(x).float() + mixer.dt_bias)).exp()[..., None]
        # S' = a S + k d^T is read by the query without a second look: S'^T q = a S^T q + (k . q) d
        read = torch.stack((key, query), dim=2) @ self._state  # [B, H, 2, V]
        change = strength * (value - decay * read[:, :, 0])
        output = decay * read[:, :, 1] + (key * query).sum(-1, keepdim=True) * change
        self._state.mul_(decay[..., None]).addcmul_(key[..., None], change[:, :, None])
        gate = mixer.in_proj_z(x).reshape(rows, -1, head)
        result: Tensor = mixer.out_proj(mixer.norm(output.to(x.dtype), gate).reshape(rows, -1))
        return result


class _AttentionStep:
    """Gated attention of one token over those before it."""

    def __init__(self, mixer: Attention, rows: int, total: int, dtype: torch.dtype) -> None:
        sizes, device = mixer.sizes, mixer.k_proj.weight.device
        shape = (rows, sizes.num_key_value_heads, total, sizes.head_dim)
        self._mixer = mixer
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    def step(self, x: Tensor, position: int) -> Tensor:
        places = torch.full((1,), position, device=x.device)
        query, key, value, gate = self._mixer.heads(x[:, None], places)
        self._keys[:, :, position], self._values[:, :, position] = key[:, 0], value[:, 0]
        keys, values = self._keys[:, :, : position + 1], self._values[:, :, : position + 1]
        rows, _, _, width = query.shape
        # the query heads of one key head are rows of one product
        grouped = query.reshape(rows, keys.shape[1], -1, width)
        shares = (grouped @ keys.transpose(2, 3) * width**-0.5).float().softmax(-1).to(x.dtype)
        return self._mixer.gated((shares @ values).reshape(rows, 1, -1, width), gate)[:, 0]

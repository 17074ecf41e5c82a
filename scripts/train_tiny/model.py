"""The dense `qwen3_5` text model in plain torch, made for training: whole sequences, no cache.

Parameters are float32 and named as in the checkpoint; activations run in the dtype the model was given.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_tiny.delta import CHUNK, chunked_delta_rule
from scripts.train_tiny.dimensions import Dimensions


class Linear(nn.Module):
    """A matrix product whose float32 weight is cast to the input's dtype."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (0.6 * gain * inputs**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Zero-centred RMS norm: x / rms(x) * (1 + weight), in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * (1 + self.weight)).to(x.dtype)


class GatedNorm(nn.Module):
    """RMS norm of a head times its weight (not one plus it), then times SiLU of the gate."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight * F.silu(gate.float())).to(x.dtype)


class DepthwiseConv(nn.Module):
    """Causal depthwise convolution and SiLU over [B, T, channels]."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * taps**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        taps = self.weight.shape[-1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        weight = self.weight.to(x.dtype)
        # a sum of shifted copies, which the compiler fuses; a grouped convolution is slow here
        total = sum(padded[:, tap : tap + x.shape[1]] * weight[:, 0, tap] for tap in range(taps))
        assert isinstance(total, Tensor)
        return F.silu(total)


class DeltaNet(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self, sizes: Dimensions, gain: float) -> None:
        super().__init__()
        self.sizes = sizes
        heads, hidden = sizes.linear_num_value_heads, sizes.hidden_size
        self.in_proj_qkv = Linear(hidden, sizes.linear_qkv_width)
        self.in_proj_z = Linear(hidden, sizes.linear_value_width)
        self.in_proj_b = Linear(hidden, heads)
        self.in_proj_a = Linear(hidden, heads)
        self.conv1d = DepthwiseConv(sizes.linear_qkv_width, sizes.linear_conv_kernel_dim)
        # decays from exp(-0.001) to exp(-1.6) a token, spread evenly in the logarithm as in Mamba 2
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        steps = torch.empty(heads).uniform_(-3, -1).mul(2.302585).exp()
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.norm = GatedNorm(sizes.linear_head_dim, sizes.rms_norm_eps)
        self.out_proj = Linear(sizes.linear_value_width, hidden, gain)

    def forward(self, x: Tensor) -> Tensor:
        sizes = self.sizes
        batch, tokens, _ = x.shape
        key_width, head = sizes.linear_key_width, sizes.linear_head_dim
        mixed = self.conv1d(self.in_proj_qkv(x))
        query, key, value = mixed.split((key_width, key_width, sizes.linear_value_width), dim=-1)
        query = unit(query.reshape(batch, tokens, -1, head)) * head**-0.5
        key = unit(key.reshape(batch, tokens, -1, head))
        strength = self.in_proj_b(x).float().sigmoid()
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        padding = -tokens % CHUNK
        output = chunked_delta_rule(
            _padded(query.to(x.dtype), padding),
            _padded(key.to(x.dtype), padding),
            _padded(value.reshape(batch, tokens, -1, head), padding),
            _padded(log_decay, padding),
            _padded(strength, padding),
        )[:, :tokens]
        gate = self.in_proj_z(x).reshape(batch, tokens, -1, head)
        result: Tensor = self.out_proj(self.norm(output, gate).reshape(batch, tokens, -1))
        return result


def unit(x: Tensor) -> Tensor:
    """Vectors of length one, float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


def _padded(x: Tensor, padding: int) -> Tensor:
    """[B, T, ...] with zeros after the last token."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding)) if padding else x


class Attention(nn.Module):
    """Gated full attention with a partial rotary embedding."""

    def __init__(self, sizes: Dimensions, gain: float) -> None:
        super().__init__()
        self.sizes = sizes
        query, key = sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
        self.q_proj = Linear(sizes.hidden_size, 2 * query)
        self.k_proj = Linear(sizes.hidden_size, key)
        self.v_proj = Linear(sizes.hidden_size, key)
        self.o_proj = Linear(query, sizes.hidden_size, gain)
        self.q_norm = Norm(sizes.head_dim, sizes.rms_norm_eps)
        self.k_norm = Norm(sizes.head_dim, sizes.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        query, key, value, gate = self.heads(x, positions)
        output = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.gated(output.transpose(1, 2), gate)

    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query and gate [B, T, H, D], key and value [B, T, Hkv, D] of x [B, T, hidden].

        Queries and keys are turned by `positions`, [T] or [B, T].
        """
        batch, tokens, _ = x.shape
        head = self.sizes.head_dim
        query, gate = self.q_proj(x).reshape(batch, tokens, -1, 2 * head).chunk(2, dim=-1)
        key = self.k_norm(self.k_proj(x).reshape(batch, tokens, -1, head))
        value = self.v_proj(x).reshape(batch, tokens, -1, head)
        return self._rotated(self.q_norm(query), positions), self._rotated(key, positions), value, gate

    def gated(self, output: Tensor, gate: Tensor) -> Tensor:
        """What was attended [B, T, H, D], gated and back to [B, T, hidden]."""
        result: Tensor = self.o_proj((output * gate.sigmoid()).flatten(2))
        return result

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, T, heads, D] with its first `rotary_dim` dimensions turned by the position.

        For text the three axes of the real model's positions are equal, so their interleaving has no effect.
        """
        return rotated(x, positions, self.sizes.rotary_dim, self.sizes.rope_theta)


def rotated(x: Tensor, positions: Tensor, dimensions: int, theta: float) -> Tensor:
    """[B, T, heads, D] with its first `dimensions` turned by `positions`, [T] or [B, T]."""
    half = dimensions // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = positions[..., None, None].float() * theta**-steps
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int, gain: float) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden, gain)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """Mixer and MLP, each behind a norm and added to the residual."""

    def __init__(self, sizes: Dimensions, kind: str) -> None:
        super().__init__()
        gain = (2 * sizes.num_hidden_layers) ** -0.5
        self.input_layernorm = Norm(sizes.hidden_size, sizes.rms_norm_eps)
        self.post_attention_layernorm = Norm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = Mlp(sizes.hidden_size, sizes.intermediate_size, gain)
        if kind == "linear_attention":
            self.linear_attn = DeltaNet(sizes, gain)
        else:
            self.self_attn = Attention(sizes, gain)

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mixer(self.input_layernorm(x))
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class TinyModel(nn.Module):
    """Tokens to hidden states to logits."""

    def __init__(self, sizes: Dimensions, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.layers = nn.ModuleList(Layer(sizes, kind) for kind in sizes.layer_types)
        self.norm = Norm(sizes.hidden_size, sizes.rms_norm_eps)
        self.lm_head = Linear(sizes.hidden_size, sizes.vocab_size, gain=0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, T, hidden] before the final norm for tokens int64 [B, T]."""
        x: Tensor = self.embed_tokens(tokens).to(self.dtype)
        for layer in self.layers:
            x = layer(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., vocab] of the next token in the model's dtype."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores


def checkpoint_parameters(model: TinyModel) -> dict[str, nn.Parameter]:
    """The model's parameters under the checkpoint's names."""
    return {
        name if name.startswith("lm_head.") else f"model.language_model.{name}": parameter
        for name, parameter in model.named_parameters()
    }


def checkpoint_weights(model: TinyModel) -> dict[str, Tensor]:
    """The model's weights under the checkpoint's names, apart from the gradients' graph."""
    return {name: parameter.detach() for name, parameter in checkpoint_parameters(model).items()}


def set_weights(model: TinyModel, weights: dict[str, Tensor]) -> None:
    """Load weights that carry the checkpoint's names; none may lack or be left over."""
    model.load_state_dict(
        {name.removeprefix("model.language_model."): tensor for name, tensor in weights.items()}
    )

"""Random inputs of Gated DeltaNet, and its formula in float64, one token at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.gdn_memory import TAPS, GdnGates, GdnMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnShape:
    """Heads of one layer; keys and values have one width."""

    key_heads: int = 1
    value_heads: int = 2
    dim: int = 32

    @property
    def channels(self) -> int:
        """Inputs of the convolution a token."""
        return (2 * self.key_heads + self.value_heads) * self.dim

    def memory(self, slots: int, *, dtype: torch.dtype, device: torch.device) -> GdnMemory:
        """Of sequences without tokens; all that must not be read is NaN."""
        memory = GdnMemory.empty(
            slots,
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.dim,
            value_dim=self.dim,
            dtype=dtype,
            device=device,
        )
        for part in (memory.inputs, memory.keys, memory.log_decays, memory.writes):
            part.fill_(torch.nan)
        return memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnWeights:
    """What a layer has beside its projections."""

    conv: Tensor
    gates: GdnGates

    def to(self, device: torch.device) -> GdnWeights:
        """The same on a device."""
        gates = GdnGates(a_log=self.gates.a_log.to(device), dt_bias=self.gates.dt_bias.to(device))
        return GdnWeights(conv=self.conv.to(device), gates=gates)


def random_weights(shape: GdnShape, *, seed: int) -> GdnWeights:
    """As published checkpoints have them: decays from fast to slow, among them one that forgets at once."""
    draw = torch.Generator().manual_seed(seed)
    a_log = torch.rand(shape.value_heads, generator=draw).mul(15.0).add(1.0).log()
    dt_bias = torch.randn(shape.value_heads, generator=draw) - 3.0
    dt_bias[0] = 2.0
    conv = torch.randn(shape.channels, TAPS, generator=draw) * 0.6
    return GdnWeights(conv=conv.bfloat16(), gates=GdnGates(a_log=a_log, dt_bias=dt_bias.bfloat16()))


def random_rows(shape: GdnShape, rows: int, *, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """qkv [rows, C], strided as part of a wider product, and ba [rows, 2 Hv]; keys resemble one another."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, shape.channels + 64, generator=draw)
    # a common part: a window whose keys are alike is the hardest to solve
    wide += torch.randn(shape.channels + 64, generator=torch.Generator().manual_seed(0))
    ba = torch.randn(rows, 2 * shape.value_heads, generator=draw)
    return wide.to(dtype)[:, : shape.channels], ba.to(dtype)


class ExactGdn:
    """One sequence in float64, one token at a time."""

    def __init__(self, shape: GdnShape, weights: GdnWeights) -> None:
        self._shape = shape
        self._weights = weights
        self.state = torch.zeros(shape.value_heads, shape.dim, shape.dim, dtype=torch.float64)
        self.history: list[Tensor] = [torch.zeros(shape.channels, dtype=torch.float64)] * (TAPS - 1)

    def read(self, qkv: Tensor, ba: Tensor) -> Tensor:
        """One row more; the convolution's result is rounded to the row's dtype, as the layer does."""
        shape, gates = self._shape, self._weights.gates
        self.history = [*self.history[-(TAPS - 1) :], qkv.double()]
        taps = torch.stack(self.history, dim=1)  # [C, TAPS]
        mixed = F.silu((taps * self._weights.conv.double()).sum(dim=1)).to(qkv.dtype).double()
        size = shape.key_heads * shape.dim
        q, k, v = mixed.split_with_sizes((size, size, shape.value_heads * shape.dim))
        repeats = shape.value_heads // shape.key_heads
        q, k = (
            (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(repeats, dim=0)
            for x in (part.reshape(shape.key_heads, shape.dim) for part in (q, k))
        )
        v = v.reshape(shape.value_heads, shape.dim)
        b, a = ba.double().chunk(2)
        decay = (-gates.a_log.double().exp() * F.softplus(a + gates.dt_bias.double())).exp()
        self.state = self.state * decay[:, None, None]
        seen = torch.einsum("hkv,hk->hv", self.state, k)
        change = b.sigmoid()[:, None] * (v - seen)
        self.state = self.state + k[:, :, None] * change[:, None, :]
        return torch.einsum("hkv,hk->hv", self.state, q * shape.dim**-0.5)

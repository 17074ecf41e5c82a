"""Every op on rows in plain torch, computed in float32: the ground truth. Knows no sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """See ops.rms_norm."""
    return (_normalised(x, eps) * (1.0 + weight.float())).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """See ops.gated_rms_norm."""
    return (_normalised(x, eps) * weight.float() * F.silu(gate.float())).to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See ops.silu_mul."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


def rotary(x: Tensor, table: Tensor) -> Tensor:
    """See ops.rotary."""
    lanes = table.shape[-1]
    cos, sin = table[:, :, None, :].unbind(0)  # [T, 1, lanes]
    first, second, rest = x.float().split_with_sizes((lanes, lanes, x.shape[-1] - 2 * lanes), dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(turned, dim=-1).to(x.dtype)


def dequantise_blocks(weight: Tensor, scales: Tensor) -> Tensor:
    """See ops.dequantise_blocks."""
    rows, columns = weight.shape
    result = torch.empty(rows, columns, dtype=torch.float32, device=weight.device)
    column_scales = scales.float().repeat_interleave(BLOCK, dim=1)[:, :columns]
    # one row of blocks at a time: no second array of the weight's full size
    for block, start in enumerate(range(0, rows, BLOCK)):
        stop = min(start + BLOCK, rows)
        torch.mul(weight[start:stop].float(), column_scales[block], out=result[start:stop])
    return result


def _normalised(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)

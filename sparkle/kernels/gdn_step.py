"""Gated DeltaNet for a few new tokens a sequence, drafts among them, with lazy replay. Knows no layers.

A pass cannot know which of its tokens will be accepted. So it leaves the state as it was before them and
keeps what they would have written in a window; the next pass first folds in the tokens accepted meanwhile.
The state is read once and written once a pass, whatever the width, and a rejected draft leaves no trace. An
empty span only folds in. Three kernels: one convolves, one solves what the new tokens do to one another, one
owns the states, and folds in while the others still run.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.checks import require_dtype
from sparkle.kernels.gdn_arguments import require_gdn
from sparkle.kernels.gdn_inputs import gdn_inputs_triton
from sparkle.kernels.gdn_memory import TAPS, WINDOW, GdnGates, GdnMemory
from sparkle.kernels.gdn_step_kernel import STEP, gdn_step_kernel
from sparkle.kernels.gdn_window import gdn_window_triton

REGISTERS = 80
"""Of a thread: with them three programs find a place on a multiprocessor."""


def gdn_step(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
    *,
    width: int = WINDOW,
) -> Tensor:
    """Fold in the accepted tokens of each sequence's last window, then read its new ones.

    c_t = SiLU(Σ_i conv[:, i] qkv_{t-3+i}), split into q, k, v; q ← q/|q| · K^-0.5, k ← k/|k|, where |x| is
    sqrt(Σ x² + 1e-6); b, a = ba; beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias); then per value
    head, with the q and k of head h // (Hv/Hk): S ← exp(g) S; S ← S + k (beta (v - Sᵀk))ᵀ; o = Sᵀq ("Gated
    Delta Networks", Yang et al. 2024).

    qkv float [T, C] in the dtype of memory.columns, ba float [T, 2 Hv], rows of any stride; conv float [C,
    TAPS], dense; span_starts int64 [S+1], spans of at most `width` rows, at most WINDOW; slots int64 [S], all
    different, negative where a place of the batch is unused; accepted int64 [S], 0 to the length of the
    slot's last span, 0 for a sequence that had none. On a GPU qkv is bfloat16, and K and V are one power of
    two from 32 to 128. Returns [T, Hv, V] in qkv's dtype; `memory` is written in place. A row's result is the
    same for every width. ValueError for any other shape or dtype.
    """
    require_gdn(qkv, ba, conv, gates, memory, span_starts, slots=slots, accepted=accepted)
    _require_width(qkv, memory, width)
    if not qkv.is_cuda:
        return gdn_step_reference(qkv, ba, conv, gates, memory, span_starts, slots, accepted)
    places = (span_starts, slots, accepted)
    return gdn_step_triton(qkv, ba, conv, gates, memory, *places, width=width, pdl=True)


def _require_width(qkv: Tensor, memory: GdnMemory, width: int) -> None:
    if not 1 <= width <= WINDOW:
        raise ValueError(f"width is {width} but a span has 1 to {WINDOW} rows at most")
    if not qkv.is_cuda:
        return
    key_dim, value_dim = memory.states.shape[2:]
    if key_dim != value_dim or key_dim not in (32, 64, 128):
        raise ValueError(f"heads are {key_dim} and {value_dim} wide but on a GPU both must be 32, 64 or 128")
    require_dtype("qkv", qkv, torch.bfloat16)


def gdn_step_reference(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
) -> Tensor:
    """See gdn_step."""
    key_heads, key_dim = memory.key_heads, memory.keys.shape[3]
    value_heads, value_dim = memory.writes.shape[2:]
    out = torch.empty(qkv.shape[0], value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    b, a = ba.float().chunk(2, dim=1)
    beta, log_decay = b.sigmoid(), -gates.a_log.float().exp() * F.softplus(a + gates.dt_bias.float())
    starts, numbers, counts = ([int(value) for value in part] for part in (span_starts, slots, accepted))
    for (start, stop), slot, kept in zip(pairwise(starts), numbers, counts, strict=True):
        if slot < 0:
            continue
        state, columns = memory.states[slot], memory.columns[slot]
        columns.copy_(torch.cat((columns, memory.inputs[slot, :kept]))[kept:].clone())
        for token in range(kept):
            _write(
                state,
                memory.keys[slot, token],
                memory.log_decays[slot, token],
                memory.writes[slot, token],
            )
        new, rows = stop - start, slice(start, stop)
        padded = torch.cat((columns, qkv[rows])).float()
        mixed = sum((conv[:, tap].float() * padded[tap : tap + new] for tap in range(TAPS)), torch.zeros(()))
        read = F.silu(mixed).to(qkv.dtype).float()
        q, k, v = read.split_with_sizes(
            (key_heads * key_dim, key_heads * key_dim, value_heads * value_dim), 1
        )
        q, k = (
            part.reshape(new, key_heads, key_dim).repeat_interleave(value_heads // key_heads, 1)
            for part in (q, k)
        )
        v = v.reshape(new, value_heads, value_dim)
        memory.inputs[slot, :new], memory.keys[slot, :new] = qkv[rows], k.to(qkv.dtype)
        memory.log_decays[slot, :new] = log_decay[rows]
        draft, per_q, per_k = state.clone(), _per_length(q) * key_dim**-0.5, _per_length(k)
        for token in range(new):
            decayed = draft * log_decay[start + token].exp()[:, None, None]
            seen = _read(decayed, k[token]) * per_k[token]
            change = beta[start + token][:, None] * (v[token] - seen) * per_k[token]
            memory.writes[slot, token] = change
            _write(draft, k[token], log_decay[start + token], change)
            out[start + token] = (_read(draft, q[token]) * per_q[token]).to(out.dtype)
    return out


def _per_length(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def _write(state: Tensor, key: Tensor, log_decay: Tensor, change: Tensor) -> None:
    """One token: state [Hv, K, V] in place, key [Hv, K], log_decay [Hv], change [Hv, V]."""
    state.mul_(log_decay.exp()[:, None, None]).add_(key.float()[:, :, None] * change[:, None, :])


def _read(state: Tensor, query: Tensor) -> Tensor:
    """Sᵀq: state [Hv, K, V], query [Hv, K]; returns [Hv, V]."""
    return (query[:, None, :] @ state)[:, 0]


def gdn_step_triton(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
    *,
    width: int,
    pdl: bool,
) -> Tensor:
    """Launches the kernels of gdn_step; `pdl`: as programmatic dependent launches."""
    out = torch.empty(qkv.shape[0], *memory.writes.shape[2:], dtype=qkv.dtype, device=qkv.device)
    spans, value_heads, dim = slots.shape[0], *memory.states.shape[1:3]
    if spans == 0:
        return out
    mixed = gdn_inputs_triton(qkv, conv, memory, span_starts, slots, accepted, width=width, pdl=pdl)
    heads = {"key_heads": memory.key_heads, "value_heads": value_heads, "dim": dim}
    window = gdn_window_triton(mixed, ba, gates, span_starts, slots, **heads, width=width, pdl=pdl)
    gdn_step_kernel[value_heads, spans](
        memory.states,
        memory.keys,
        memory.log_decays,
        memory.writes,
        span_starts,
        slots,
        accepted,
        mixed,
        window.scales,
        window.parts,
        out,
        KEY_HEADS=memory.key_heads,
        HEADS=value_heads,
        DIM=dim,
        STEP=STEP,
        W=WINDOW,
        WARPS=dim // 16,
        PDL=pdl,
        num_warps=dim // 16,
        maxnreg=REGISTERS,
        launch_pdl=pdl,
    )
    return out

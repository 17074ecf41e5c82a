"""Every op that reads or writes a sequence's memory, in plain torch, computed in float32: the ground truth.

The rows of several sequences stand one after another; a span is the rows of one. Knows no layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_TOKENS = 64
RECURRENT_TOKENS = 4  # up to here the recurrence costs less than the chunk form's solve


def causal_conv(x: Tensor, weight: Tensor, columns: Tensor, span_starts: Tensor, slots: Tensor) -> Tensor:
    """See ops.causal_conv."""
    out = torch.empty_like(x)
    taps = weight.float().t()  # [W, C]
    width = taps.shape[0]
    for spans, rows in _equal_spans(span_starts):
        length = rows.shape[1]
        carried = columns.index_select(0, slots[spans])
        padded = torch.cat((carried, x[rows]), dim=1)  # [B, W-1+n, C]
        columns[slots[spans]] = padded[:, length:]
        mixed = torch.zeros(rows.shape + x.shape[1:], device=x.device)
        for tap in range(width):
            mixed += taps[tap] * padded[:, tap : tap + length].float()
        out[rows] = F.silu(mixed).to(x.dtype)
    return out


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    span_starts: Tensor,
    slots: Tensor,
) -> Tensor:
    """See ops.delta_rule."""
    out = torch.empty_like(value)
    repeats = value.shape[1] // key.shape[1]
    query = (_unit(query) * query.shape[-1] ** -0.5).repeat_interleave(repeats, dim=1)
    key = _unit(key).repeat_interleave(repeats, dim=1)
    # heads first: [H, T, …]
    rows = [part.float().transpose(0, 1) for part in (query, key, value, log_decay, beta)]
    for (start, stop), slot in zip(pairwise(_integers(span_starts)), _integers(slots), strict=True):
        step = 1 if stop - start <= RECURRENT_TOKENS else CHUNK_TOKENS
        for first in range(start, stop, step):
            last = min(first + step, stop)
            q, k, v, g, b = (part[:, first:last] for part in rows)
            read = _delta_step if step == 1 else _delta_chunk
            out[first:last] = read(q, k, v, g, b, states[slot]).transpose(0, 1)
    return out


def _delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """One token; q, k [H, 1, K], v [H, 1, V], g, b [H, 1], state [H, K, V] in place; returns [H, 1, V]."""
    state.mul_(g.exp()[:, :, None])
    state.baddbmm_(k.transpose(1, 2), b[:, :, None] * (v - k @ state))
    return q @ state


def _delta_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """Up to 64 tokens; q, k [H, C, K], v [H, C, V], g, b [H, C], state [H, K, V] in place; returns [H, C, V].

    With G the running sum of g, S the state before and D the rows written to it:
    (I + tril(beta k kᵀ exp(G_i - G_j), -1)) D = beta (v - exp(G) k S); o = exp(G) q S +
    tril(q kᵀ exp(G_i - G_j)) D; S' = exp(G_last) S + (exp(G_last - G) k)ᵀ D.
    """
    # [H, i, j], the sum of g from j + 1 to i; a difference of running sums would cancel after a strong decay
    since = g[:, :, None].expand(-1, -1, g.shape[1]).tril(-1).cumsum(dim=1)
    decay = since.exp().tril()
    carried = g.cumsum(dim=1).exp()[:, :, None]  # [H, C, 1]
    lower = (k @ k.transpose(1, 2)) * decay * b[:, :, None]
    written = _solve_unit_lower(lower, b[:, :, None] * (v - carried * (k @ state)))
    out = carried * (q @ state) + (q @ k.transpose(1, 2) * decay) @ written
    state.mul_(carried[:, -1:]).baddbmm_((decay[:, -1, :, None] * k).transpose(1, 2), written)
    return out


def _solve_unit_lower(lower: Tensor, right: Tensor) -> Tensor:
    """X with (I + tril(lower, -1)) X = right."""
    # torch has no types for it
    solve = torch.linalg.solve_triangular  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast(Tensor, solve(lower, right, upper=False, unitriangular=True))


def write_kv(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, cells: Tensor) -> None:
    """See ops.write_kv."""
    key_pages.flatten(0, 1).index_copy_(0, cells, key)
    value_pages.flatten(0, 1).index_copy_(0, cells, value)


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    scale: float,
) -> Tensor:
    """See ops.paged_attention."""
    out = torch.empty_like(query)
    page_tokens = key_pages.shape[1]
    bounds = pairwise(_integers(span_starts))
    for (start, stop), context, table in zip(bounds, _integers(contexts), page_tables, strict=True):
        length = context + stop - start
        pages = table[: -(-length // page_tokens)]
        keys, values = (
            cache.index_select(0, pages).flatten(0, 1)[:length].transpose(0, 1).float()
            for cache in (key_pages, value_pages)
        )  # [Hkv, length, D]
        ends = torch.arange(context, length, device=query.device)
        seen = torch.arange(length, device=query.device) <= ends[:, None]  # [n, length]
        attended = F.scaled_dot_product_attention(
            query[start:stop].transpose(0, 1).float()[None],
            keys[None],
            values[None],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )
        out[start:stop] = attended[0].transpose(0, 1)
    return out


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + 1e-6)


def _equal_spans(span_starts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The spans by length: their numbers [B] and their rows [B, n]; empty spans are left out.

    A pass that decodes many sequences is then one batch and not a loop.
    """
    by_length: dict[int, list[int]] = {}
    for span, (start, stop) in enumerate(pairwise(_integers(span_starts))):
        by_length.setdefault(stop - start, []).append(span)
    for length, members in by_length.items():
        if length > 0:
            spans = torch.tensor(members, device=span_starts.device)
            yield spans, span_starts[spans][:, None] + torch.arange(length, device=span_starts.device)


def _integers(values: Tensor) -> list[int]:
    # torch types tolist as a bare list
    return cast(list[int], values.tolist())  # pyright: ignore[reportUnknownMemberType]

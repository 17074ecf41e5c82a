"""Every op that reads or writes a sequence's memory, in plain torch, computed in float32: the ground truth.

The rows of several sequences stand one after another; a span is the rows of one. Spans of equal length are
computed together, so a pass that decodes many sequences is one batch. Knows no layers.
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
        padded = torch.cat((columns[slots[spans]], x[rows]), dim=1)  # [B, W-1+n, C]
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
    query = _unit(query) * query.shape[-1] ** -0.5
    key = _unit(key)
    for spans, rows in _equal_spans(span_starts):
        form = _recurrent_form if rows.shape[1] <= RECURRENT_TOKENS else _chunk_form
        o, states[slots[spans]] = form(
            query[rows].repeat_interleave(repeats, dim=2).transpose(1, 2),
            key[rows].repeat_interleave(repeats, dim=2).transpose(1, 2),
            value[rows].float().transpose(1, 2),
            log_decay[rows].float().transpose(1, 2),
            beta[rows].float().transpose(1, 2),
            states[slots[spans]],
        )
        out[rows] = o.transpose(1, 2).to(value.dtype)
    return out


def _recurrent_form(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token. query, key [B, H, n, K], value [B, H, n, V], gates [B, H, n], state [B, H, K, V]."""
    outputs: list[Tensor] = []
    for token in range(query.shape[2]):
        k = key[:, :, token, :, None]  # [B, H, K, 1]
        state = state * log_decay[:, :, token, None, None].exp()
        error = value[:, :, token] - (state * k).sum(dim=2)
        state = state + k * (beta[:, :, token, None] * error)[:, :, None, :]
        outputs.append((state * query[:, :, token, :, None]).sum(dim=2))
    return torch.stack(outputs, dim=2), state


def _chunk_form(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """64 tokens at a time; shapes as in `_recurrent_form`.

    With G the running sum of log_decay in the chunk, S the state before it and D the rows written to it:
    (I + tril(beta k k^T exp(G_i - G_j), -1)) D = beta (v - exp(G) k S); o = exp(G) q S +
    tril(q k^T exp(G_i - G_j)) D; S' = exp(G_last) S + (exp(G_last - G) k)^T D.
    """
    outputs: list[Tensor] = []
    for start in range(0, query.shape[2], CHUNK_TOKENS):
        chunk = slice(start, start + CHUNK_TOKENS)
        q, k, v, g, b = (part[:, :, chunk] for part in (query, key, value, log_decay, beta))
        total = g.cumsum(dim=2)[..., None]  # [B, H, C, 1]
        # masked before exp: above the diagonal the difference is positive and may overflow
        later = torch.ones(g.shape[2], g.shape[2], dtype=torch.bool, device=g.device).triu(1)
        decay = (total - total.transpose(2, 3)).masked_fill(later, -torch.inf).exp()  # [B, H, C, C]
        lower = (k @ k.transpose(2, 3)) * decay * b[..., None]
        wanted = b[..., None] * (v - total.exp() * (k @ state))
        # reads below the diagonal only and takes the diagonal as ones; torch has no types for it
        written: Tensor = torch.linalg.solve_triangular(  # pyright: ignore[reportUnknownMemberType]
            lower, wanted, upper=False, unitriangular=True
        )
        outputs.append(total.exp() * (q @ state) + (q @ k.transpose(2, 3) * decay) @ written)
        last = total[:, :, -1:]
        state = last.exp() * state + ((last - total).exp() * k).transpose(2, 3) @ written
    return torch.cat(outputs, dim=2), state


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
            cache[pages].flatten(0, 1)[:length].transpose(0, 1).float() for cache in (key_pages, value_pages)
        )  # [Hkv, length, D]
        ends = torch.arange(context, length, device=query.device)
        seen = torch.arange(length, device=query.device) <= ends[:, None]  # [n, length]
        out[start:stop] = (
            F.scaled_dot_product_attention(
                query[start:stop].transpose(0, 1).float()[None],
                keys[None],
                values[None],
                attn_mask=seen,
                scale=scale,
                enable_gqa=True,
            )[0]
            .transpose(0, 1)
            .to(query.dtype)
        )
    return out


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + 1e-6)


def _equal_spans(span_starts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The spans by length: their numbers [B] and their rows [B, n]; empty spans are left out."""
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

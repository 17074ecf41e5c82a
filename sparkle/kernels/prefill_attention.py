"""Causal attention of a prompt's chunk over its sequence's cache, by torch's cuDNN backend. Knows no layers.

What is attended to is read from the pages, the chunk's own keys and values too: whether a prefix was read in
this pass, in one before or came from the cache of another request, the numbers are the same. The backend
knows a causal mask for equally many queries and keys alone: so the context and the chunk are calls of their
own, joined by their log-sum-exp.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.prefill_cuts import cuts_of
from sparkle.kernels.prefill_parts import Part, gathered, joined


def prefill_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    *,
    context: int,
    scale: float,
) -> Tensor:
    """softmax(scale · q kᵀ) v of one sequence's rows `context` to `context` + T, which the pages hold.

    query float [T, H, D], rows and heads of any stride; pages e4m3 (at scale 1) or query's dtype [pages,
    page_tokens, Hkv, D], dense; page_table int32 [P], the sequence's pages in order. On a GPU query is
    bfloat16. Returns [T, H, D] in query's dtype. ValueError for any other shape or dtype, or too few pages.
    """
    require_dtype("query", query, *FLOATS)
    require_shape("query", query, None, None, None)
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        require_dtype(name, pages, query.dtype, torch.float8_e4m3fn)
        require_shape(name, pages, None, None, None, query.shape[2])
        require_dense(name, pages)
    require_shape("value_pages", value_pages, *key_pages.shape)
    require_dtype("page_table", page_table, torch.int32)
    require_shape("page_table", page_table, None)
    if query.shape[1] % key_pages.shape[2]:
        raise ValueError(
            f"query has {query.shape[1]} heads but they must be a multiple of the pages' {key_pages.shape[2]}"
        )
    tokens, held = context + query.shape[0], page_table.shape[0] * key_pages.shape[1]
    if context < 0 or tokens > held:
        raise ValueError(
            f"context is {context} and query has {query.shape[0]} rows but the pages hold {held} tokens"
        )
    require_one_device(query=query, key_pages=key_pages, value_pages=value_pages, page_table=page_table)
    run = prefill_attention_cudnn if query.is_cuda else prefill_attention_reference
    return run(query, key_pages, value_pages, page_table, context=context, scale=scale)


def prefill_attention_reference(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    *,
    context: int,
    scale: float,
) -> Tensor:
    """See prefill_attention."""
    out = reference_sequence.paged_attention(
        query.float(),
        key_pages.float(),
        value_pages.float(),
        page_table[None],
        torch.tensor([0, query.shape[0]], device=query.device),
        torch.tensor([context], device=query.device),
        scale=scale,
    )
    return out.to(query.dtype)


def prefill_attention_cudnn(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    *,
    context: int,
    scale: float,
) -> Tensor:
    """By cuDNN, in calls of few shapes: see prefill_cuts."""
    rows = query.shape[0]
    if rows == 0:
        return torch.empty_like(query)
    cuts = cuts_of(context, rows)
    held, room = context + rows, cuts.start + cuts.own_rows
    keys, values = gathered(key_pages, value_pages, page_table, held, query.dtype, room=room)
    # heads first, a batch of one
    k, v = (part.transpose(0, 1)[None] for part in (keys, values))
    behind = context - cuts.start
    own = _attend(
        _filled(query, behind, cuts.own_rows),
        k[:, :, cuts.start :],
        v[:, :, cuts.start :],
        causal=True,
        scale=scale,
    )
    parts = [_rows(own, behind, rows)]
    if cuts.runs:
        filled = _filled(query, 0, cuts.rows)
        for start, end in cuts.runs:
            part = _attend(filled, k[:, :, start:end], v[:, :, start:end], causal=False, scale=scale)
            parts.append(_rows(part, 0, rows))
    return joined(parts, query.dtype)


def _filled(query: Tensor, before: int, count: int) -> Tensor:
    """Query [T, H, D] as [1, H, count, D], zeros in the rows before it and behind."""
    rows = query.shape[0]
    if rows != count:
        filled = query.new_zeros(count, *query.shape[1:])
        filled[before : before + rows] = query
        query = filled
    return query.transpose(0, 1)[None]


def _rows(part: Part, first: int, count: int) -> Part:
    """So many of a part's rows."""
    return part[0][:, first : first + count], part[1][:, first : first + count]


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Part:
    """cuDNN's result [H, T, D] and log-sum-exp [H, T]; torch's public call has only the result."""
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    out, log_sum, *_ = cast(
        tuple[Tensor, ...], attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    )
    return out[0], log_sum.float().reshape(q.shape[1:3])

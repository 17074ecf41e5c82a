"""Attention of a few new tokens a sequence over a long paged cache: decode and verify. Knows no layers.

The time is that of reading the keys and values, so they are read once: the cache is split among enough
programs to fill the chip, and a second kernel joins the parts by their log-sum-exp. Split count and grid
follow from shapes alone, lengths are read on the device: a captured graph serves every length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.attention_join import join_parts
from sparkle.kernels.attention_parts import Paged, Parts, attention_parts
from sparkle.kernels.attention_parts_fp8 import attention_parts_fp8, takes
from sparkle.kernels.checks import (
    FLOATS,
    require_dense,
    require_dtype,
    require_one_device,
    require_shape,
    require_spans,
)
from sparkle.kernels.quantise import (
    GROUP,
    Fp8Rows,
    empty_rows,
    quantise_rows,
    quantise_rows_reference,
)

MAX_WIDTH = 16
"""New tokens of one sequence in a pass at most."""
CACHES = (*FLOATS, torch.float8_e4m3fn)


def verify_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    width: int,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ) v over a row's own sequence, times sigmoid(gate) where there is one.

    As ops.paged_attention, for spans of at most `width` <= 16 rows; the pages may be e4m3, which stands for
    its values at scale 1. query, gate float [T, H, D], rows and heads of any stride; pages [pages,
    page_tokens, Hkv, D], dense; page_tables int32 [S, max_pages]; span_starts int64 [S+1]; contexts int64
    [S]. On a GPU D is a power of two, and queries of e4m3 pages must be below 65,504. Rows outside the spans
    become anything. Returns [T, H, D] in query's dtype. ValueError for any other shape or dtype.
    """
    paged = Paged(query, key_pages, value_pages, page_tables, span_starts, contexts)
    _require(paged, width, gate)
    if query.is_cuda:
        return verify_attention_triton(paged, width=width, scale=scale, gate=gate, pdl=True)
    return verify_attention_reference(paged, scale=scale, gate=gate)


def verify_attention_quantised(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    width: int,
    scale: float,
    gate: Tensor | None = None,
) -> Fp8Rows:
    """verify_attention as an activation [T, H · D] in groups of 128, quantised from float32.

    H · D must be a multiple of 128.
    """
    paged = Paged(query, key_pages, value_pages, page_tables, span_starts, contexts)
    _require(paged, width, gate)
    if query.shape[1] * query.shape[2] % GROUP:
        raise ValueError(
            f"query has {query.shape[1]} heads of {query.shape[2]} but they must make groups of {GROUP}"
        )
    if query.is_cuda:
        return verify_attention_quantised_triton(paged, width=width, scale=scale, gate=gate, pdl=True)
    return quantise_rows_reference(_exact(paged, scale=scale, gate=gate).flatten(1))


def verify_attention_reference(paged: Paged, *, scale: float, gate: Tensor | None = None) -> Tensor:
    """See verify_attention."""
    return _exact(paged, scale=scale, gate=gate).to(paged.query.dtype)


def _exact(paged: Paged, *, scale: float, gate: Tensor | None) -> Tensor:
    out = reference_sequence.paged_attention(
        paged.query.float(),
        paged.key_pages.float(),
        paged.value_pages.float(),
        paged.page_tables,
        paged.span_starts,
        paged.contexts,
        scale=scale,
    )
    return out if gate is None else out * gate.float().sigmoid()


def verify_attention_triton(
    paged: Paged, *, width: int, scale: float, gate: Tensor | None = None, pdl: bool
) -> Tensor:
    """Launches the kernels of verify_attention."""
    query = paged.query
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if out.numel():
        parts = _parts(paged, width=width, scale=scale, pdl=pdl)
        join_parts(parts, gate, out, pdl=pdl)
    return out


def verify_attention_quantised_triton(
    paged: Paged, *, width: int, scale: float, gate: Tensor | None = None, pdl: bool
) -> Fp8Rows:
    """Launches the kernels of verify_attention_quantised."""
    rows, heads, head_dim = paged.query.shape
    if head_dim % GROUP:  # a program of the join holds no whole group
        joined = verify_attention_triton(paged, width=width, scale=scale, gate=gate, pdl=pdl)
        return quantise_rows(joined.flatten(1))
    out = empty_rows(rows, heads * head_dim, paged.query.device)
    if rows:
        parts = _parts(paged, width=width, scale=scale, pdl=pdl)
        join_parts(parts, gate, out, pdl=pdl)
    return out


def _parts(paged: Paged, *, width: int, scale: float, pdl: bool) -> Parts:
    run = attention_parts_fp8 if takes(paged) else attention_parts
    return run(paged, width=width, scale=scale, pdl=pdl)


def _require(paged: Paged, width: int, gate: Tensor | None) -> None:
    query, key_pages, value_pages = paged.query, paged.key_pages, paged.value_pages
    page_tables, span_starts, contexts = paged.page_tables, paged.span_starts, paged.contexts
    require_dtype("query", query, *FLOATS)
    require_shape("query", query, None, None, None)
    require_spans(span_starts, contexts=contexts)
    require_dtype("page_tables", page_tables, torch.int32)
    require_shape("page_tables", page_tables, contexts.shape[0], None)
    require_dtype("key_pages", key_pages, *CACHES)
    require_dtype("value_pages", value_pages, key_pages.dtype)
    require_shape("key_pages", key_pages, None, None, None, query.shape[2])
    require_shape("value_pages", value_pages, *key_pages.shape)
    require_dense("key_pages", key_pages)
    require_dense("value_pages", value_pages)
    if query.shape[1] % key_pages.shape[2]:
        raise ValueError(
            f"query has {query.shape[1]} heads but they must be a multiple of the pages' {key_pages.shape[2]}"
        )
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width} but must be 1 to {MAX_WIDTH}")
    if gate is not None:
        require_dtype("gate", gate, *FLOATS)
        require_shape("gate", gate, *query.shape)
        require_one_device(query=query, gate=gate)
    require_one_device(
        query=query,
        key_pages=key_pages,
        value_pages=value_pages,
        page_tables=page_tables,
        span_starts=span_starts,
        contexts=contexts,
    )

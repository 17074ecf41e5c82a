"""The only door to the kernels: each op checks what it is given, then computes. Knows no layers, no requests.

The ops imported below take their kernel on a GPU and the plain torch reference elsewhere; those written out
here compute with the reference, whatever the device.

Shapes: T rows of a pass, S spans (the rows of one sequence each, one after another), H heads, D a head's
width. `span_starts` int64 [S+1] rises from 0 to T; `slots` int64 [S] are all different. "float" is float32 or
bfloat16. A wrong shape, dtype, device or stride is a ValueError that names the argument. Values of integer
tensors are not checked: reading them would stop a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference, reference_sequence

# re-exported under their own names: each is checked where it stands
from sparkle.kernels.block_conv import BlockTaps as BlockTaps
from sparkle.kernels.block_conv import block_conv as block_conv
from sparkle.kernels.block_conv import block_conv_add as block_conv_add
from sparkle.kernels.block_conv import block_conv_quantise as block_conv_quantise
from sparkle.kernels.candidate_path import Candidates as Candidates
from sparkle.kernels.candidate_path import Draws as Draws
from sparkle.kernels.candidate_path import candidate_path as candidate_path
from sparkle.kernels.checks import (
    FLOATS,
    require_dense,
    require_dtype,
    require_one_device,
    require_shape,
    require_spans,
)
from sparkle.kernels.compiled import CompileCount as CompileCount
from sparkle.kernels.compiled import keep_compiled_kernels as keep_compiled_kernels
from sparkle.kernels.delta_rule_inputs import require_delta_rule
from sparkle.kernels.draw_drafts import draw_drafts as draw_drafts
from sparkle.kernels.draw_rows import RowSettings as RowSettings
from sparkle.kernels.draw_rows import draw_rows as draw_rows
from sparkle.kernels.draw_rows import finite_rows as finite_rows
from sparkle.kernels.fp8_linear import fp8_linear as fp8_linear
from sparkle.kernels.fp8_linear import fp8_linear_parts as fp8_linear_parts
from sparkle.kernels.gate_up import gate_up_silu_quantise as gate_up_silu_quantise
from sparkle.kernels.gdn_chunk import gdn_chunk as gdn_chunk
from sparkle.kernels.gdn_memory import GdnGates as GdnGates
from sparkle.kernels.gdn_memory import GdnMemory as GdnMemory
from sparkle.kernels.gdn_prompt_inputs import gdn_prompt_inputs as gdn_prompt_inputs
from sparkle.kernels.gdn_step import gdn_step as gdn_step
from sparkle.kernels.largest import largest as largest
from sparkle.kernels.lm_head import lm_head_greedy as lm_head_greedy
from sparkle.kernels.lm_head import lm_head_logits as lm_head_logits
from sparkle.kernels.mask_logits import mask_logits as mask_logits
from sparkle.kernels.mask_logits import rule_out as rule_out
from sparkle.kernels.narrow_linear import MAX_COLUMNS
from sparkle.kernels.narrow_linear import narrow_linear as narrow_linear
from sparkle.kernels.norm_quant import add_rms_norm_both as add_rms_norm_both
from sparkle.kernels.norm_quant import add_rms_norm_quantise as add_rms_norm_quantise
from sparkle.kernels.norm_quant import gated_rms_norm_quantise as gated_rms_norm_quantise
from sparkle.kernels.prefill_attention import prefill_attention as prefill_attention
from sparkle.kernels.qkv_write import qkv_write as qkv_write
from sparkle.kernels.quantise import Fp8Blocks as Fp8Blocks
from sparkle.kernels.quantise import Fp8Rows as Fp8Rows
from sparkle.kernels.quantise import quantise_blocks as quantise_blocks
from sparkle.kernels.quantise import quantise_rows as quantise_rows
from sparkle.kernels.ring_attention import Rings as Rings
from sparkle.kernels.ring_attention import ring_attention as ring_attention
from sparkle.kernels.ring_attention import ring_attention_quantised as ring_attention_quantised
from sparkle.kernels.rotary_table import rotary_table as rotary_table
from sparkle.kernels.shared_memory import divide_memory_alike as divide_memory_alike
from sparkle.kernels.sigmoid_mul_quant import sigmoid_mul_quantise as sigmoid_mul_quantise
from sparkle.kernels.silu_mul_quant import silu_mul_quantise as silu_mul_quantise
from sparkle.kernels.verify_attention import verify_attention as verify_attention
from sparkle.kernels.verify_attention import verify_attention_quantised as verify_attention_quantised

MOST_NARROW_COLUMNS = MAX_COLUMNS
"""Outputs of narrow_linear at most."""
BLOCK = reference.BLOCK
"""Rows and columns of a quantised matrix that share one scale."""


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """y = x / sqrt(mean(x²) + eps) · (1 + weight), over the last dimension.

    x float [..., D], weight float [D]; returns x's shape and dtype, rounded once at the end.
    """
    require_dtype("x", x, *FLOATS)
    require_dtype("weight", weight, *FLOATS)
    require_shape("weight", weight, x.shape[-1])
    require_one_device(x=x, weight=weight)
    return reference.rms_norm(x, weight, eps=eps)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """y = x / sqrt(mean(x²) + eps) · weight · SiLU(gate), over the last dimension: the norm before the gate.

    x, gate float [..., D], weight float [D]; returns x's shape and dtype, rounded once at the end.
    """
    require_dtype("x", x, *FLOATS)
    require_dtype("weight", weight, *FLOATS)
    require_dtype("gate", gate, x.dtype)
    require_shape("gate", gate, *x.shape)
    require_shape("weight", weight, x.shape[-1])
    require_one_device(x=x, gate=gate, weight=weight)
    return reference.gated_rms_norm(x, gate, weight, eps=eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """y = SiLU(gate) · up. gate_up float [T, 2N], the gate's N columns first; returns [T, N]."""
    require_dtype("gate_up", gate_up, *FLOATS)
    require_shape("gate_up", gate_up, None, None)
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[1]} columns but gate and up are of one width")
    return reference.silu_mul(gate_up)


def rotary(x: Tensor, table: Tensor) -> Tensor:
    """Turn the pairs (x[i], x[i + lanes]) of each head by the table; the rest of the head passes through.

    x float [T, H, D], table float32 [2, T, lanes] of `rotary_table`, 2·lanes <= D; returns x's shape, dtype.
    """
    require_dtype("x", x, *FLOATS)
    require_shape("x", x, None, None, None)
    require_dtype("table", table, torch.float32)
    require_shape("table", table, 2, x.shape[0], None)
    if 2 * table.shape[-1] > x.shape[2]:
        raise ValueError(f"table turns {2 * table.shape[-1]} dimensions but x has heads of {x.shape[2]}")
    require_one_device(x=x, table=table)
    return reference.rotary(x, table)


def write_kv(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, cells: Tensor) -> None:
    """Store the keys and values of a pass in their pages, in place.

    key, value float [T, Hkv, D]; key_pages, value_pages of the same dtype [pages, page_tokens, Hkv, D],
    dense; cells int64 [T], all different: page · page_tokens + place in the page.
    """
    require_dtype("key", key, *FLOATS)
    require_shape("key", key, None, None, None)
    _require_pages(key_pages, value_pages, key)
    require_shape("key", key, None, key_pages.shape[2], key_pages.shape[3])
    require_dtype("value", value, key.dtype)
    require_shape("value", value, *key.shape)
    require_dtype("cells", cells, torch.int64)
    require_shape("cells", cells, key.shape[0])
    require_one_device(key=key, value=value, key_pages=key_pages, value_pages=value_pages, cells=cells)
    reference_sequence.write_kv(key, value, key_pages, value_pages, cells)


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
    """Causal attention: softmax(scale · q kᵀ) v over a row's own sequence; head h reads kv head h // (H/Hkv).

    query float [T, H, D]; pages as in `write_kv`, which has stored the pass's own rows before; page_tables
    int32 [S, max_pages], each sequence's pages in order, entries past its last page unread; contexts int64
    [S], tokens of each sequence before its span. Row i of a span sees contexts + i + 1 tokens. Returns
    query's shape and dtype.
    """
    require_dtype("query", query, *FLOATS)
    require_shape("query", query, None, None, None)
    require_spans(span_starts, contexts=contexts)
    require_dtype("page_tables", page_tables, torch.int32)
    require_shape("page_tables", page_tables, contexts.shape[0], None)
    _require_pages(key_pages, value_pages, query)
    if query.shape[1] % key_pages.shape[2]:
        raise ValueError(
            f"query has {query.shape[1]} heads but they must be a multiple of the pages' {key_pages.shape[2]}"
        )
    require_one_device(
        query=query,
        key_pages=key_pages,
        value_pages=value_pages,
        page_tables=page_tables,
        span_starts=span_starts,
        contexts=contexts,
    )
    return reference_sequence.paged_attention(
        query, key_pages, value_pages, page_tables, span_starts, contexts, scale=scale
    )


def causal_conv(x: Tensor, weight: Tensor, columns: Tensor, span_starts: Tensor, slots: Tensor) -> Tensor:
    """Depthwise causal convolution over each sequence, then SiLU; the last W-1 rows are carried in place.

    x float [T, C]; weight float [C, W], its last tap on the newest row; columns of x's dtype [slots, W-1, C],
    dense: each sequence's rows before its span as they came in, oldest first. Returns x's shape and dtype.
    """
    require_dtype("x", x, *FLOATS)
    require_shape("x", x, None, None)
    require_dtype("weight", weight, *FLOATS)
    require_shape("weight", weight, x.shape[1], None)
    require_spans(span_starts, slots=slots)
    require_dtype("columns", columns, x.dtype)
    require_shape("columns", columns, None, weight.shape[1] - 1, x.shape[1])
    require_dense("columns", columns)
    require_one_device(x=x, weight=weight, columns=columns, span_starts=span_starts, slots=slots)
    return reference_sequence.causal_conv(x, weight, columns, span_starts, slots)


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
    """The gated delta rule ("Gated Delta Networks", Yang et al. 2024); writes the states in place.

    Per row and value head, with q = query/|query| · K^-0.5 and k = key/|key| of key head h // (Hv/Hk):
    S ← exp(log_decay) S; S ← S + k (beta (v - Sᵀk))ᵀ; o = Sᵀq. |x| is sqrt(sum x² + 1e-6).

    query, key float [T, Hk, K]; value float [T, Hv, V]; log_decay, beta float32 [T, Hv]; states float32
    [slots, Hv, K, V], dense. Returns value's shape and dtype.
    """
    require_delta_rule(query, key, value, log_decay, beta, states, span_starts, slots)
    require_one_device(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        beta=beta,
        states=states,
        span_starts=span_starts,
        slots=slots,
    )
    return reference_sequence.delta_rule(query, key, value, log_decay, beta, states, span_starts, slots)


def dequantise_blocks(weight: Tensor, scales: Tensor) -> Tensor:
    """W[i, j] = weight[i, j] · scales[i // 128, j // 128], in float32; the last blocks may be ragged.

    weight float8_e4m3fn [N, K], scales float [ceil(N/128), ceil(K/128)]; returns float32 [N, K].
    """
    require_dtype("weight", weight, torch.float8_e4m3fn)
    require_shape("weight", weight, None, None)
    require_dtype("scales", scales, *FLOATS)
    require_shape("scales", scales, *(-(-size // BLOCK) for size in weight.shape))
    require_one_device(weight=weight, scales=scales)
    return reference.dequantise_blocks(weight, scales)


def _require_pages(key_pages: Tensor, value_pages: Tensor, rows: Tensor) -> None:
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        require_shape(name, pages, None, None, None, rows.shape[2])
        require_dtype(name, pages, rows.dtype)
        require_dense(name, pages)
    require_shape("value_pages", value_pages, *key_pages.shape)

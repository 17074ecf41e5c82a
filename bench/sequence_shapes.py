"""The sequence ops' inputs at the shapes of Qwen3.8-27B, random, on the GPU. Knows no timing."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.gdn_memory import TAPS, GdnGates, GdnMemory
from sparkle.kernels.rotary_table import rotary_table

HEADS, KV_HEADS, HEAD_DIM = 24, 4, 256
KEY_HEADS, VALUE_HEADS, STATE_DIM = 16, 48, 128
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE_DIM
CONTEXT_TOKENS = 33_000
PAGE_TOKENS = 64


def random_bf16(*shape: int) -> Tensor:
    """Normal values."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def equal_spans(sequences: int, width: int) -> Tensor:
    """span_starts of sequences with so many rows each."""
    return torch.arange(sequences + 1, device="cuda") * width


def random_pages(pages: int, kind: torch.dtype) -> Tensor:
    """Normal values in the cache's dtype."""
    filled = torch.empty(pages, PAGE_TOKENS, KV_HEADS, HEAD_DIM, dtype=kind, device="cuda")
    filled.copy_(random_bf16(*filled.shape))
    return filled


def paged_pass(
    sequences: int,
    width: int,
    kind: torch.dtype,
    *,
    layers: int,
    context_tokens: int = CONTEXT_TOKENS,
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor]:
    """query and gate of one product, each layer's keys and values, page_tables, span_starts, contexts."""
    pages = -(-(context_tokens + width) // PAGE_TOKENS)
    wide = random_bf16(sequences * width, HEADS, 2, HEAD_DIM)
    caches = [
        (random_pages(sequences * pages, kind), random_pages(sequences * pages, kind)) for _ in range(layers)
    ]
    table = torch.randperm(sequences * pages, device="cuda").reshape(sequences, pages).int()
    contexts = torch.full((sequences,), context_tokens, device="cuda")
    return wide[:, :, 0], wide[:, :, 1], caches, table, equal_spans(sequences, width), contexts


def gdn_pass(
    sequences: int, width: int, *, layers: int
) -> tuple[Tensor, Tensor, Tensor, GdnGates, list[GdnMemory], Tensor, Tensor]:
    """qkv as part of a wider product, ba, conv, gates, each layer's memory, span_starts, slots."""
    rows = sequences * width
    gates = GdnGates(
        a_log=torch.rand(VALUE_HEADS, device="cuda").mul(15.0).add(1.0).log(),
        dt_bias=random_bf16(VALUE_HEADS) - 3.0,
    )
    memories = [
        GdnMemory.empty(
            sequences,
            key_heads=KEY_HEADS,
            value_heads=VALUE_HEADS,
            key_dim=STATE_DIM,
            value_dim=STATE_DIM,
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
        )
        for _ in range(layers)
    ]
    qkv = random_bf16(rows, CHANNELS + VALUE_HEADS * STATE_DIM)[:, :CHANNELS]
    slots = torch.arange(sequences, device="cuda")
    ba, conv = random_bf16(rows, 2 * VALUE_HEADS).float(), random_bf16(CHANNELS, TAPS).float()
    return qkv, ba, conv, gates, memories, equal_spans(sequences, width), slots


def projection(rows: int) -> tuple[Tensor, ...]:
    """qkv_write's arguments: views of one product, an e4m3 cache."""
    wide = random_bf16(rows, (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM)
    sizes = (2 * HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
    queries, key, value = (part.reshape(rows, -1, HEAD_DIM) for part in wide.split_with_sizes(sizes, 1))
    norms = random_bf16(HEAD_DIM), random_bf16(HEAD_DIM)
    positions = torch.arange(rows, device="cuda").expand(3, rows)
    table = rotary_table(positions, theta=1e7, rotary_dim=64, sections=(11, 11, 10))
    pages = -(-rows // PAGE_TOKENS)
    caches = random_pages(pages, torch.float8_e4m3fn), random_pages(pages, torch.float8_e4m3fn)
    cells = torch.randperm(pages * PAGE_TOKENS, device="cuda")[:rows]
    return (queries[:, ::2], key, value, *norms, table, *caches, cells)


def rule_of(rows: int) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor, Tensor, Tensor]:
    """The delta rule's query, key, value, log_decay and beta; states, span_starts, slots: one prompt."""
    wide = random_bf16(rows, CHANNELS)
    size = KEY_HEADS * STATE_DIM
    parts = wide.split_with_sizes((size, size, VALUE_HEADS * STATE_DIM), 1)
    query, key, value = (part.reshape(rows, -1, STATE_DIM) for part in parts)
    log_decay = -torch.rand(rows, VALUE_HEADS, device="cuda") * 0.2
    beta = torch.rand(rows, VALUE_HEADS, device="cuda")
    states = torch.zeros(1, VALUE_HEADS, STATE_DIM, STATE_DIM, device="cuda")
    slots = torch.zeros(1, dtype=torch.int64, device="cuda")
    return (query, key, value, log_decay, beta), states, equal_spans(1, rows), slots

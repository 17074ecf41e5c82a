"""The blocks of a draft before their first layer: tokens, places, rotary angles. Knows no weights."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import MAX_BLOCK_ROWS, MIN_BLOCK_ROWS, DFlashConfig
from sparkle.model.dflash_layer import Block


def block_of(
    slots: Tensor, contexts: Tensor, cache: DFlashCache, config: DFlashConfig, *, rows: int
) -> Block:
    """Blocks of `rows` rows behind so many tokens of each slot, int64 [S] both.

    ValueError where `rows` is not 2 to 16.
    """
    if not MIN_BLOCK_ROWS <= rows <= MAX_BLOCK_ROWS:
        raise ValueError(f"rows is {rows} but a block has {MIN_BLOCK_ROWS} to {MAX_BLOCK_ROWS}")
    positions = contexts[:, None] + torch.arange(rows, device=slots.device)
    return Block(
        slots=slots,
        contexts=contexts,
        cells=cache.block_cells(slots, rows=rows),
        rotary_table=plain_table(positions.view(-1), config),
        width=rows,
    )


def block_tokens(anchors: Tensor, config: DFlashConfig, *, rows: int) -> Tensor:
    """Each of `anchors`, int64 [S], and masks behind it: int64 [S · rows]."""
    shape = (anchors.shape[0], rows - 1)
    masks = torch.full(shape, config.mask_token, dtype=torch.int64, device=anchors.device)
    return torch.cat((anchors[:, None], masks), dim=1).view(-1)


def plain_table(positions: Tensor, config: DFlashConfig) -> Tensor:
    """The rotary table of positions int64 [T] that have one axis and turn all of a head."""
    return ops.rotary_table(
        positions.expand(3, -1),
        theta=config.rope_theta,
        rotary_dim=config.head_dim,
        sections=(config.head_dim // 2, 0, 0),
    )

"""What a DFlash2 model keeps of each sequence: the newest keys and values of its context. Knows no layer.

A position's place in the ring is its remainder, so that the newest `window` positions are there, whatever
the number of tokens. Only kept tokens ever enter it; what a draft's own rows are stands behind it, where the
next draft writes over it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.model.dflash_config import MAX_BLOCK_ROWS, DFlashConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBatch:
    """T rows of a pass of the target, S spans one after another; int64 on the cache's device."""

    span_starts: Tensor  # [S+1], from 0 to at most T
    slots: Tensor  # [S], all different; negative for an unused place
    contexts: Tensor  # [S], the position of each span's first row
    kept: Tensor  # [S], of each span the first so many rows are kept


class DFlashCache:
    """Allocated once, written in place: `keys`, `values` [L, slots + 1, window + 16, Hkv, D], L layers.

    The slot behind the last takes the rows that nobody keeps, for a captured graph cannot leave them out.
    """

    def __init__(
        self, config: DFlashConfig, *, num_slots: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._window, self._cells = config.window, config.window + MAX_BLOCK_ROWS
        shape = (config.num_layers, num_slots + 1, self._cells, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self._spare = num_slots

    @staticmethod
    def bytes_per_slot(config: DFlashConfig, dtype: torch.dtype) -> int:
        """Size of one sequence's ring."""
        cells = config.window + MAX_BLOCK_ROWS
        return 2 * config.num_layers * cells * config.kv_size * dtype.itemsize

    @property
    def bytes(self) -> int:
        """Size of everything kept."""
        return self.keys.nbytes + self.values.nbytes

    def zero_slot(self, slot: int) -> None:
        """Make `slot` that of a sequence with no tokens; due before each new sequence on the slot."""
        self.keys[:, slot].zero_()
        self.values[:, slot].zero_()

    def write(self, layer: int, keys: Tensor, values: Tensor, cells: Tensor) -> None:
        """Store keys and values [T, Hkv, D] of a layer in `cells` of `Placed`."""
        for ring, rows in ((self.keys, keys), (self.values, values)):
            ring[layer].flatten(0, 1)[cells] = rows.to(ring.dtype)

    def read(self, layer: int, slots: Tensor, *, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, window + rows, Hkv, D] of a layer, those of a block behind the ring's."""
        used = torch.where(slots < 0, self._spare, slots)
        keys, values = (ring[layer].index_select(0, used) for ring in (self.keys, self.values))
        return keys[:, : self._window + rows], values[:, : self._window + rows]

    def block_cells(self, slots: Tensor, *, rows: int) -> Tensor:
        """The cells for `write` of a block's own rows behind each slot's ring, int64 [S · rows]."""
        first = torch.where(slots < 0, self._spare, slots) * self._cells + self._window
        return (first[:, None] + torch.arange(rows, device=slots.device)).view(-1)

    def place(self, batch: ContextBatch, rows: int) -> tuple[Tensor, Tensor]:
        """Of each of `rows` rows its position and its cell for `write`, int64 [T] both.

        Of a span with more kept rows than the window only the newest have a cell of their own.
        """
        window = self._window
        row = torch.arange(rows, device=batch.slots.device)
        span = torch.searchsorted(batch.span_starts[1:], row, right=True).clamp(max=len(batch.slots) - 1)
        position = batch.contexts[span] + row - batch.span_starts[span]
        end = (batch.contexts + batch.kept)[span]
        stays = (position < end) & (position >= end - window)
        slot = torch.where(stays & (batch.slots[span] >= 0), batch.slots[span], self._spare)
        return position, slot * self._cells + position % window

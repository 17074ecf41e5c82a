"""What a DFlash2 model keeps of each sequence: the newest keys and values of its context. Knows no layer.

A position's place in the ring is its remainder, so that the newest `window` positions are there, whatever
the number of tokens. Only kept tokens ever enter: what a draft's own rows were is nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.model.dflash_config import DFlashConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBatch:
    """T rows of a pass of the target, S spans one after another; int64 on the cache's device."""

    span_starts: Tensor  # [S+1], from 0 to at most T
    slots: Tensor  # [S], all different; negative for an unused place
    contexts: Tensor  # [S], the position of each span's first row
    kept: Tensor  # [S], of each span the first so many rows are kept


class DFlashCache:
    """Allocated once, written in place: `keys`, `values` [L, slots + 1, window, Hkv, D], L layers.

    The slot behind the last takes the rows that nobody keeps, for a captured graph cannot leave them out.
    """

    def __init__(
        self, config: DFlashConfig, *, num_slots: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_layers, num_slots + 1, config.window, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self._spare = num_slots

    @staticmethod
    def bytes_per_slot(config: DFlashConfig, dtype: torch.dtype) -> int:
        """Size of one sequence's ring."""
        return 2 * config.num_layers * config.window * config.kv_size * dtype.itemsize

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

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [S, window, Hkv, D] of a layer."""
        used = torch.where(slots < 0, self._spare, slots)
        return self.keys[layer].index_select(0, used), self.values[layer].index_select(0, used)

    def place(self, batch: ContextBatch, rows: int) -> tuple[Tensor, Tensor]:
        """Of each of `rows` rows its position and its cell for `write`, int64 [T] both.

        Of a span with more kept rows than the window only the newest have a cell of their own.
        """
        window = self.keys.shape[2]
        row = torch.arange(rows, device=batch.slots.device)
        span = torch.searchsorted(batch.span_starts[1:], row, right=True).clamp(max=len(batch.slots) - 1)
        position = batch.contexts[span] + row - batch.span_starts[span]
        end = (batch.contexts + batch.kept)[span]
        stays = (position < end) & (position >= end - window)
        slot = torch.where(stays & (batch.slots[span] >= 0), batch.slots[span], self._spare)
        return position, slot * window + position % window


def visible(contexts: Tensor, *, window: int, rows: int) -> Tensor:
    """Which cells of its sequence's ring each row of a block sees: bool [S, rows, window].

    contexts int64 [S]: tokens in the ring so far, and the position of the block's first row. A row at
    position p sees the positions from p - window + 1 on.
    """
    newest = contexts[:, None] - 1
    cell = torch.arange(window, device=contexts.device)
    held = newest - (newest - cell) % window  # [S, window]: the position in each cell
    row = contexts[:, None] + torch.arange(rows, device=contexts.device)
    seen = row[:, :, None] - held[:, None, :] < window
    return seen & (held >= 0)[:, None, :]

"""What the decoder keeps of each sequence: KV pages and state slots of all layers. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.model.config import LayerType, ModelConfig


@dataclass(frozen=True, slots=True)
class SavedSlots:
    """A copy of some slots: `states` and `columns` as `SequenceCache` has them, of `slots` alone."""

    slots: list[int]
    states: Tensor
    columns: Tensor


class SequenceCache:
    """Allocated once, written in place by the decoder.

    Full attention, A such layers, a draft head's the last of them: `keys`, `values` in `dtype`
    [A, pages, page_tokens, Hkv, D].
    Linear attention, L such layers: `states` float32 [L, slots, Hv, K, V], `columns` in `dtype`
    [L, slots, taps-1, C], the last inputs of the convolution, oldest first. The first index of all four is a
    layer's rank among the layers of its kind.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_pages: int,
        page_tokens: int,
        num_slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        linear = config.layer_types.count(LayerType.LINEAR)
        pages = (config.num_kv_layers, num_pages, page_tokens, config.num_kv_heads, config.head_dim)
        heads = (config.linear_num_value_heads, config.linear_key_dim, config.linear_value_dim)
        columns = (config.conv_width - 1, config.conv_channels)
        self.page_tokens = page_tokens
        self.keys = torch.zeros(pages, device=device, dtype=dtype)
        self.values = torch.zeros(pages, device=device, dtype=dtype)
        # the state adds up over thousands of tokens: in bfloat16 the answers fall apart
        self.states = torch.zeros((linear, num_slots, *heads), device=device, dtype=torch.float32)
        self.columns = torch.zeros((linear, num_slots, *columns), device=device, dtype=dtype)

    @property
    def num_slots(self) -> int:
        """Sequences that it has room for."""
        return self.states.shape[1]

    @property
    def bytes(self) -> int:
        """Size of everything kept."""
        return sum(part.nbytes for part in (self.keys, self.values, self.states, self.columns))

    def save(self, slots: Sequence[int]) -> SavedSlots:
        """What these slots hold now, in memory of its own; pages are not kept: cells are written over."""
        places = list(slots)
        return SavedSlots(places, self.states[:, places], self.columns[:, places])

    def restore(self, saved: SavedSlots, slots: Sequence[int]) -> None:
        """Bring back what `saved` has of `slots`, which must be among them."""
        own = [saved.slots.index(slot) for slot in slots]
        self.states[:, list(slots)] = saved.states[:, own]
        self.columns[:, list(slots)] = saved.columns[:, own]

    def zero_slot(self, slot: int) -> None:
        """Make `slot` the state of a sequence with no tokens; due before each new sequence on the slot."""
        self.states[:, slot].zero_()
        self.columns[:, slot].zero_()

    def copy_slot(self, source: int, target: int) -> None:
        """Make `target` the state of the same tokens as `source`."""
        for part in (self.states, self.columns):
            part[:, target] = part[:, source]

    def copy_page(self, source: int, target: int) -> None:
        """Make the page `target` hold what `source` does."""
        for part in (self.keys, self.values):
            part[:, target] = part[:, source]

    def zero_pages(self, pages: Sequence[int]) -> None:
        """Wipe pages of an ended sequence. No answer depends on it: only cells written before are read."""
        self.keys[:, list(pages)] = 0
        self.values[:, list(pages)] = 0

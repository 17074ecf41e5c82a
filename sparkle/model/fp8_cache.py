"""What the FP8 decoder keeps of each sequence: KV pages, states and windows. Knows no requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import LayerType, ModelConfig


class Fp8Cache:
    """Allocated once, written in place by the decoder.

    `keys`, `values` e4m3 [A, pages, page_tokens, Hkv, D], A layers of full attention, a draft head's the last
    of them; `memories`, one for each layer of linear attention. An index is a layer's rank among the layers
    of its kind.
    """

    def __init__(
        self, config: ModelConfig, *, num_pages: int, page_tokens: int, num_slots: int, device: torch.device
    ) -> None:
        linear = config.layer_types.count(LayerType.LINEAR)
        pages = (config.num_kv_layers, num_pages, page_tokens, config.num_kv_heads, config.head_dim)
        self.page_tokens = page_tokens
        self.keys = torch.zeros(pages, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        self.values = torch.zeros(pages, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        # one tensor for all layers, so that a slot is wiped with few launches
        self._all = ops.GdnMemory.empty(
            linear * num_slots,
            key_heads=config.linear_num_key_heads,
            value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_dim,
            value_dim=config.linear_value_dim,
            dtype=torch.bfloat16,
            device=device,
        )
        self._linear = linear
        self.num_slots = num_slots
        """Sequences that it has room for."""
        self.memories = tuple(
            _layer_of(self._all, slice(rank * num_slots, (rank + 1) * num_slots)) for rank in range(linear)
        )

    @property
    def kv_bytes(self) -> int:
        """Size of all pages."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def state_bytes(self) -> int:
        """Size of all slots."""
        return sum(part.nbytes for part in _parts(self._all).values())

    def zero_slot(self, slot: int) -> None:
        """Make `slot` that of a sequence with no tokens, its window too: no trace of the one before stays."""
        for part in self._by_slot():
            part[:, slot].zero_()

    def copy_slot(self, source: int, target: int) -> None:
        """Make `target` the state and the window of the same tokens as `source`."""
        for part in self._by_slot():
            part[:, target] = part[:, source]

    def copy_page(self, source: int, target: int) -> None:
        """Make the page `target` hold what `source` does."""
        for part in (self.keys, self.values):
            numbers = part.view(torch.uint8)
            numbers[:, target] = numbers[:, source]

    def zero_pages(self, pages: Sequence[int]) -> None:
        """Wipe pages of an ended sequence. No answer depends on it: only cells written before are read."""
        index = torch.tensor(list(pages), device=self.keys.device)
        for part in (self.keys, self.values):
            # torch fills bytes where it fills no e4m3
            part.view(torch.uint8).index_fill_(1, index, 0)

    def _by_slot(self) -> Iterator[Tensor]:
        """All that slots hold, [L, slots, ...] each."""
        return (part.view(self._linear, self.num_slots, -1) for part in _parts(self._all).values())


def _parts(memory: ops.GdnMemory) -> dict[str, Tensor]:
    return {field.name: getattr(memory, field.name) for field in dataclasses.fields(memory)}


def _layer_of(memory: ops.GdnMemory, slots: slice) -> ops.GdnMemory:
    return ops.GdnMemory(**{name: part[slots] for name, part in _parts(memory).items()})

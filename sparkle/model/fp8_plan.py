"""Plans where each tensor of a checkpoint goes in the weights of the FP8 decoder. Knows no layers.

Tensors are checked by their headers alone; nothing is read here. What is stored as it is used will be copied
as it is, scales and vectors become float32, and a matrix not in FP8 blocks is quantised on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sparkle.errors import TensorMismatch, UnsupportedModel
from sparkle.kernels import ops
from sparkle.model.copy_plan import Part, spans
from sparkle.model.inventory import SCALE_SUFFIX, Inventory, not_finite
from sparkle.model.safetensors_header import StoredTensor, stored_tensors

PART_BYTES = 16 << 20
"""Larger tensors go in several parts of about this size."""

FP8 = "F8_E4M3"
FLOATS = {"BF16": torch.bfloat16, "F32": torch.float32}
"""The other dtypes that weights and scales may have, by their names in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a stored matrix and where the first of them stands in the joined one."""

    count: int
    stored: int = 0
    joined: int = 0


class Fp8Plan:
    """The parts of the checkpoint in `directory` that have been given a place so far.

    Names are given as Inventory.full_name takes them. Each method raises TensorMismatch naming a tensor that
    is missing or of another shape or dtype.
    """

    def __init__(self, directory: Path) -> None:
        self._inventory = Inventory(directory, stored_tensors)
        self.parts: list[Part] = []
        self.quantised = 0
        """Matrices that are not stored in FP8 blocks."""
        self._float32: dict[str, list[Tensor]] = {}
        """Where vectors and scales go, by the tensor's name: a small part of all bytes."""

    def require_finite(self) -> None:
        """Raises CheckpointError naming a vector or scales that are not finite; due once all is copied."""
        names = list(self._float32)
        # waits for the device once
        flags = torch.stack(
            [torch.stack([place.isfinite().all() for place in self._float32[name]]).all() for name in names]
        )
        for name, finite in zip(names, flags.cpu(), strict=True):
            if not finite:
                raise not_finite(name)

    @property
    def has_mtp(self) -> bool:
        """See Inventory.has_mtp."""
        return self._inventory.has_mtp

    def skipped(self) -> tuple[str, ...]:
        """See Inventory.skipped."""
        return self._inventory.skipped()

    def floats(self, name: str, place: Tensor, *, shape: Sequence[int] | None = None) -> None:
        """A tensor that is not quantised, to dense memory of its shape, rounded to its dtype.

        `shape`: the stored one, where that has dimensions of 1 which the place has not.
        """
        name = self._inventory.full_name(name)
        self._convert(self._take(name, shape or place.shape, FLOATS), place.view(-1))
        self._remember(name, place)

    def matrix(self, name: str, place: ops.Fp8Blocks, *rows: Rows) -> None:
        """All rows of a matrix, to where they stand in the joined one; without `rows`, it is the whole.

        Raises UnsupportedModel where rows that stay together are not whole blocks of 128.
        """
        name = self._inventory.full_name(name)
        total, columns = place.values.shape
        if rows:
            _require_blocks(name, rows)
        else:
            rows = (Rows(count=total),)
        stored = self._take(name, (sum(piece.count for piece in rows), columns), (FP8, *FLOATS))
        if stored.dtype == FP8:
            self._copy_blocks(name, stored, place, rows)
        else:
            self.quantised += 1
            self._quantise(stored, place, rows)

    def _scales(self, name: str, weight: StoredTensor) -> StoredTensor:
        scale_name = name + SCALE_SUFFIX
        if scale_name not in self._inventory:
            raise TensorMismatch(f"{name} is FP8 but its scales {scale_name} are missing")
        return self._take(scale_name, [_num_blocks(size) for size in weight.shape], FLOATS)

    def _copy_blocks(
        self, name: str, stored: StoredTensor, place: ops.Fp8Blocks, rows: Sequence[Rows]
    ) -> None:
        scales = self._scales(name, stored)
        for piece in rows:
            to = _slice(place, piece.joined, piece.count)
            self._copy(_rows(stored, piece.stored, piece.count), to.values.view(torch.uint8).view(-1))
            first = piece.stored // ops.BLOCK
            self._convert(_rows(scales, first, _num_blocks(piece.count)), to.scales.view(-1))
            self._remember(name + SCALE_SUFFIX, to.scales)

    def _quantise(self, stored: StoredTensor, place: ops.Fp8Blocks, rows: Sequence[Rows]) -> None:
        block_bytes = ops.BLOCK * stored.shape[1] * FLOATS[stored.dtype].itemsize
        step = ops.BLOCK * max(1, PART_BYTES // block_bytes)
        for piece in rows:
            for start, stop in spans(piece.count, step):
                to = _slice(place, piece.joined + start, stop - start)
                put = partial(_put_quantised, dtype=FLOATS[stored.dtype], place=to)
                self._add(_rows(stored, piece.stored + start, stop - start), put)

    def _convert(self, stored: StoredTensor, place: Tensor) -> None:
        """Stored floats to flat memory of the same dtype or another."""
        dtype = FLOATS[stored.dtype]
        if dtype is place.dtype:
            self._copy(stored, place.view(torch.uint8))
            return
        for start, stop in spans(place.numel(), PART_BYTES // dtype.itemsize):
            first, size_bytes = start * dtype.itemsize, (stop - start) * dtype.itemsize
            put = partial(_put_converted, dtype=dtype, place=place[start:stop])
            self._add(_bytes(stored, first, size_bytes), put)

    def _remember(self, name: str, place: Tensor) -> None:
        if place.dtype is torch.float32:
            self._float32.setdefault(name, []).append(place)

    def _copy(self, stored: StoredTensor, place: Tensor) -> None:
        """Stored bytes to flat memory as they are."""
        for start, stop in spans(place.numel(), PART_BYTES):
            self._add(_bytes(stored, start, stop - start), partial(_put_bytes, place=place[start:stop]))

    def _add(self, stored: StoredTensor, put: Callable[[Tensor], None]) -> None:
        self.parts.append(Part(file=stored.file, start=stored.start, size_bytes=stored.size_bytes, put=put))

    def _take(self, name: str, shape: Sequence[int], dtypes: Collection[str]) -> StoredTensor:
        stored = self._inventory.take(name)
        if stored.dtype not in dtypes:
            raise TensorMismatch(f"{name} is {stored.dtype} but must be {' or '.join(dtypes)}")
        if stored.shape != tuple(shape):
            raise TensorMismatch(f"{name} has shape {list(stored.shape)} but must be {list(shape)}")
        return stored


def _require_blocks(name: str, rows: Sequence[Rows]) -> None:
    for piece in rows:
        if piece.count % ops.BLOCK or piece.stored % ops.BLOCK or piece.joined % ops.BLOCK:
            raise UnsupportedModel(
                f"{name} is joined with others in pieces of {piece.count} rows, "
                f"but FP8 blocks need a multiple of {ops.BLOCK}"
            )


def _num_blocks(size: int) -> int:
    return -(-size // ops.BLOCK)


def _bytes(stored: StoredTensor, first: int, size_bytes: int) -> StoredTensor:
    """Some of a tensor's bytes; what they mean is known to who asks."""
    return dataclasses.replace(stored, start=stored.start + first, size_bytes=size_bytes)


def _rows(stored: StoredTensor, first: int, count: int) -> StoredTensor:
    """`count` rows of a matrix from `first` on."""
    row_bytes = stored.size_bytes // stored.shape[0]
    return _bytes(stored, first * row_bytes, count * row_bytes)


def _slice(matrix: ops.Fp8Blocks, first: int, count: int) -> ops.Fp8Blocks:
    """`count` rows of a matrix from the block that begins at `first` on."""
    blocks = first // ops.BLOCK
    return ops.Fp8Blocks(
        matrix.values[first : first + count], matrix.scales[blocks : blocks + _num_blocks(count)]
    )


def _put_bytes(raw: Tensor, *, place: Tensor) -> None:
    place.copy_(raw, non_blocking=True)


def _put_converted(raw: Tensor, *, dtype: torch.dtype, place: Tensor) -> None:
    place.copy_(_on_device(raw, place.device).view(dtype))


def _put_quantised(raw: Tensor, *, dtype: torch.dtype, place: ops.Fp8Blocks) -> None:
    weight = _on_device(raw, place.values.device).view(dtype).view(place.values.shape)
    blocks = ops.quantise_blocks(weight)
    place.values.copy_(blocks.values)
    place.scales.copy_(blocks.scales)


def _on_device(raw: Tensor, device: torch.device) -> Tensor:
    # always a copy: on a CPU too the bytes may begin anywhere, a tensor of floats may not
    return raw.to(device, non_blocking=True, copy=True)

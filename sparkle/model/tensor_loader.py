"""Takes a checkpoint's tensors one by one, checks each and puts it where it will be used. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.errors import TensorMismatch
from sparkle.model import fp8
from sparkle.model.inventory import not_finite
from sparkle.model.tensor_files import TensorFiles

FLOAT_DTYPES = (torch.bfloat16, torch.float32)


class TensorLoader:
    """Matrices come out in `dtype`, vectors and convolutions in float32, all on `device` and copied.

    Names are given without `prefix`, or where there is none as Inventory.full_name takes them. Each method
    raises TensorMismatch naming a tensor that is missing or of another shape or dtype, CheckpointError naming
    a vector, a convolution or scales that are not finite.
    """

    def __init__(
        self, files: TensorFiles, *, device: torch.device, dtype: torch.dtype, prefix: str | None = None
    ) -> None:
        self._files = files
        self._device = device
        self._dtype = dtype
        self._prefix = prefix
        self.dequantised = 0

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix [rows, columns], dequantised if it is in the FP8 form."""
        name = self._full_name(name)
        stored = self._take(name, rows, columns)
        if fp8.is_quantised(stored):
            self.dequantised += 1
            stored = fp8.take_dequantised(self._files, name, stored)
        return self._placed(name, stored, self._dtype)

    def vector(self, name: str, length: int) -> Tensor:
        """A vector [length], in float32."""
        return self.floats(name, length)

    def floats(self, name: str, *shape: int) -> Tensor:
        """A tensor of any shape, in float32."""
        name = self._full_name(name)
        placed = self._placed(name, self._take(name, *shape), torch.float32)
        if not placed.isfinite().all():
            raise not_finite(name)
        return placed

    def convolution(self, name: str, channels: int, taps: int) -> Tensor:
        """A depthwise convolution [channels, taps], in float32; stored as [channels, 1, taps]."""
        return self.floats(name, channels, 1, taps).squeeze(1)

    @property
    def has_mtp(self) -> bool:
        """See Inventory.has_mtp."""
        return self._files.has_mtp

    def skipped(self) -> tuple[str, ...]:
        """See Inventory.skipped."""
        return self._files.skipped()

    def _full_name(self, name: str) -> str:
        return self._files.full_name(name) if self._prefix is None else self._prefix + name

    def _take(self, name: str, *shape: int) -> Tensor:
        stored = self._files.take(name)
        if stored.shape != shape:
            raise TensorMismatch(f"{name} has shape {list(stored.shape)} but must be {list(shape)}")
        return stored

    def _placed(self, name: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
        if stored.dtype not in FLOAT_DTYPES:
            raise TensorMismatch(f"{name} is {stored.dtype} but must be bfloat16 or float32")
        # a copy: the stored tensor may be a view of the file, which can be replaced under a running process
        return stored.to(self._device, dtype, copy=True)

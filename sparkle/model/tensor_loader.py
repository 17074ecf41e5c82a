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

    Names are given without `prefix`, by default the decoder's, which is `model.language_model.` in a
    checkpoint with a vision tower and `model.` in one without. Each method raises TensorMismatch naming a
    tensor that is missing or of another shape or dtype, CheckpointError naming a vector, a convolution or
    scales that are not finite.
    """

    def __init__(
        self, files: TensorFiles, *, device: torch.device, dtype: torch.dtype, prefix: str | None = None
    ) -> None:
        self._files = files
        self._device = device
        self._dtype = dtype
        self._prefix = files.prefix if prefix is None else prefix
        self.dequantised = 0

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A decoder matrix [rows, columns], dequantised if it is in the FP8 form."""
        return self._matrix(self._prefix + name, rows, columns)

    def head(self, rows: int, columns: int) -> Tensor:
        """The output matrix [rows, columns], the one decoder tensor whose name has no prefix."""
        return self._matrix("lm_head.weight", rows, columns)

    def vector(self, name: str, length: int) -> Tensor:
        """A vector [length], in float32."""
        return self._floats(self._prefix + name, length)

    def floats(self, name: str, *shape: int) -> Tensor:
        """A tensor of any shape, in float32."""
        return self._floats(self._prefix + name, *shape)

    def convolution(self, name: str, channels: int, taps: int) -> Tensor:
        """A depthwise convolution [channels, taps], in float32; stored as [channels, 1, taps]."""
        return self._floats(self._prefix + name, channels, 1, taps).squeeze(1)

    def skipped(self) -> tuple[str, ...]:
        """See Inventory.skipped."""
        return self._files.skipped()

    def _matrix(self, name: str, rows: int, columns: int) -> Tensor:
        stored = self._take(name, rows, columns)
        if fp8.is_quantised(stored):
            self.dequantised += 1
            stored = fp8.take_dequantised(self._files, name, stored)
        return self._placed(name, stored, self._dtype)

    def _floats(self, name: str, *shape: int) -> Tensor:
        placed = self._placed(name, self._take(name, *shape), torch.float32)
        if not placed.isfinite().all():
            raise not_finite(name)
        return placed

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

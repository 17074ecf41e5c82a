"""Which device computes: one H200, or the CPU. Knows no model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import torch

from sparkle.engine.settings import Device
from sparkle.errors import ConfigError

log = logging.getLogger(__name__)

CAPABILITY = (9, 0)
"""What the kernels are compiled for."""
LEAST_BYTES = 130 * 2**30
NEEDED = "one NVIDIA H200 (compute capability 9.0, at least 130 GiB)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that torch sees."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    @property
    def serves(self) -> bool:
        """Whether it is of the one kind that the kernels are written for."""
        return self.capability == CAPABILITY and self.memory_bytes >= LEAST_BYTES

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name} (compute capability {major}.{minor}, {self.memory_bytes / 2**30:.0f} GiB)"


def find_gpu() -> Gpu | None:
    """The first GPU that this process may use."""
    if not torch.cuda.is_available():
        return None
    # torch has no types for what it tells of a device
    properties = cast(Any, torch.cuda).get_device_properties(0)
    return Gpu(
        name=properties.name,
        capability=(properties.major, properties.minor),
        memory_bytes=properties.total_memory,
    )


def choose_device(wanted: Device, gpu: Gpu | None) -> Device:
    """CPU or CUDA. Raises ConfigError, naming what was found, where CUDA is wanted and is not an H200."""
    if wanted is Device.CPU:
        return Device.CPU
    if gpu is not None and gpu.serves:
        return Device.CUDA
    if wanted is Device.CUDA:
        found = f"found {gpu}" if gpu is not None else "found no GPU"
        raise ConfigError(
            f"sparkle serves on {NEEDED}; {found}; use --device cpu for a small model on the CPU"
        )
    if gpu is not None:
        log.warning("gpu_unused", extra={"found": str(gpu), "needed": NEEDED})
    return Device.CPU

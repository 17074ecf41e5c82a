"""The safetensors files of a checkpoint, read tensor by tensor into memory. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparkle.errors import CheckpointError
from sparkle.model.inventory import Inventory


class _Shard(Protocol):
    """What this module uses of safetensors' untyped reader."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...


class TensorFiles:
    """All tensors of a checkpoint by name; a tensor's bytes are read when it is taken.

    Raises CheckpointError where a file is missing or damaged, TensorMismatch where index and shards disagree.
    """

    def __init__(self, directory: Path) -> None:
        self._inventory = Inventory(directory, _open)

    def __contains__(self, name: str) -> bool:
        return name in self._inventory

    def full_name(self, name: str) -> str:
        """See Inventory.full_name."""
        return self._inventory.full_name(name)

    @property
    def has_mtp(self) -> bool:
        """See Inventory.has_mtp."""
        return self._inventory.has_mtp

    def take(self, name: str) -> Tensor:
        """The tensor as stored, on the CPU. Raises TensorMismatch where there is none of this name."""
        shard = self._inventory.take(name)
        try:
            return shard.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{name} cannot be read: {error}") from error

    def skipped(self) -> tuple[str, ...]:
        """See Inventory.skipped."""
        return self._inventory.skipped()


def _open(path: Path) -> Mapping[str, _Shard]:
    """The file's reader under each of its tensors' names."""
    try:
        shard = cast(_Shard, safe_open(path, framework="pt"))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path.name} is damaged: {error}") from error
    return dict.fromkeys(shard.keys(), shard)

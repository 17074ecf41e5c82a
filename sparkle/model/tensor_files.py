"""The safetensors files of a checkpoint: which tensors there are, each read once. Knows no model.

One file `model.safetensors`, or shards listed in `model.safetensors.index.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparkle.errors import CheckpointError, TensorMismatch
from sparkle.model.config_fields import Fields, read_json, section

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class _Shard(Protocol):
    """What this module uses of safetensors' untyped reader."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...


class TensorFiles:
    """All tensors of a checkpoint by name; a tensor's bytes are read when it is taken.

    Raises CheckpointError where a file is missing or damaged, TensorMismatch where index and shards disagree.
    """

    def __init__(self, directory: Path) -> None:
        self._shards: dict[str, _Shard] = {}
        index = directory / INDEX_FILE
        listed = _listed(read_json(index)) if index.exists() else None
        for file in sorted(set(listed.values())) if listed is not None else [SINGLE_FILE]:
            shard = _open(directory / file)
            for name in shard.keys():  # noqa: SIM118 (the reader is no mapping)
                if listed is not None and listed.get(name) != file:
                    raise TensorMismatch(f"{name} is in {file} but not in {INDEX_FILE}")
                self._shards[name] = shard
        for name in listed or ():
            if name not in self._shards:
                raise TensorMismatch(f"{name} is in {INDEX_FILE} but in no shard")
        self._untaken = set(self._shards)

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    @property
    def untaken(self) -> Sequence[str]:
        """Names of the tensors never taken, sorted."""
        return sorted(self._untaken)

    def take(self, name: str) -> Tensor:
        """The tensor as stored, on the CPU. Raises TensorMismatch where there is none of this name."""
        shard = self._shards.get(name)
        if shard is None:
            raise TensorMismatch(f"{name} is missing from the checkpoint")
        self._untaken.discard(name)
        try:
            return shard.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{name} cannot be read: {error}") from error


def _listed(index: Fields) -> dict[str, str]:
    """Tensor name to shard file name."""
    listed: dict[str, str] = {}
    for name, file in section(index, "weight_map").items():
        # a plain file name: an index must not reach outside its own directory
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{INDEX_FILE} must give a file name for {name}")
        listed[name] = file
    return listed


def _open(path: Path) -> _Shard:
    try:
        return cast(_Shard, safe_open(path, framework="pt"))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path.name} is damaged: {error}") from error

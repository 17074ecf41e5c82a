"""The tensors of a checkpoint by name: which files there are, what each holds, what has been taken.

Knows neither what a tensor is nor how a file is read. One file `model.safetensors`, or shards listed in
`model.safetensors.index.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from sparkle.errors import CheckpointError, TensorMismatch
from sparkle.model.config_fields import Fields, read_json, require_file, section

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
NESTED_PREFIX = "model.language_model."
FLAT_PREFIX = "model."
MTP_PREFIX = "mtp."
SKIPPED_PREFIXES = ("model.visual.", MTP_PREFIX)
TOP_LEVEL = ("lm_head.", MTP_PREFIX)
SCALE_SUFFIX = "_scale_inv"

_NO_FILES = ("", "..")
"""Names that a path takes for plain ones."""

Found = TypeVar("Found")


class Inventory(Generic[Found]):
    """All tensors of the checkpoint in `directory`, each taken once; `open_shard` says what a file holds.

    Raises TensorMismatch where index and shards disagree, CheckpointError where one is no regular file, and
    what `open_shard` raises.
    """

    def __init__(self, directory: Path, open_shard: Callable[[Path], Mapping[str, Found]]) -> None:
        self._found: dict[str, Found] = {}
        index = directory / INDEX_FILE
        listed = _listed(read_json(index)) if index.exists() else None
        for file in sorted(set(listed.values())) if listed is not None else [SINGLE_FILE]:
            require_file(directory / file)
            for name, found in open_shard(directory / file).items():
                if listed is not None and listed.get(name) != file:
                    raise TensorMismatch(f"{name} is in {file} but not in {INDEX_FILE}")
                self._found[name] = found
        for name in listed or ():
            if name not in self._found:
                raise TensorMismatch(f"{name} is in {INDEX_FILE} but in no shard")
        self._untaken = set(self._found)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def full_name(self, name: str) -> str:
        """A tensor's name as it is stored: the decoder's have a prefix, output matrix and draft head none."""
        if name.startswith(TOP_LEVEL):
            return name
        # longer in a checkpoint with a vision tower
        nested = f"{NESTED_PREFIX}embed_tokens.weight" in self
        return (NESTED_PREFIX if nested else FLAT_PREFIX) + name

    @property
    def has_mtp(self) -> bool:
        """The draft head is there: copies of a checkpoint may lack it."""
        return any(name.startswith(MTP_PREFIX) for name in self._found)

    @property
    def untaken(self) -> Sequence[str]:
        """Names of the tensors never taken, sorted."""
        return sorted(self._untaken)

    def take(self, name: str) -> Found:
        """What was found under the name. Raises TensorMismatch where there is none."""
        if name not in self._found:
            raise TensorMismatch(f"{name} is missing from the checkpoint")
        self._untaken.discard(name)
        return self._found[name]

    def skipped(self) -> tuple[str, ...]:
        """Names of the tensors of later parts, left in the files; call it after everything is taken.

        Raises TensorMismatch naming a tensor that belongs to no part of the model.
        """
        for name in self.untaken:
            if name.startswith(SKIPPED_PREFIXES):
                continue
            if name.endswith(SCALE_SUFFIX):
                raise TensorMismatch(f"{name} scales no FP8 matrix")
            raise TensorMismatch(f"{name} is in the checkpoint but not in this model")
        return tuple(self.untaken)


def not_finite(name: str) -> CheckpointError:
    """For a tensor by which all rows are multiplied: each answer would fail, not the start."""
    return CheckpointError(f"{name} has values that are not finite; its file is damaged")


def _listed(index: Fields) -> dict[str, str]:
    """Tensor name to shard file name."""
    listed: dict[str, str] = {}
    for name, file in section(index, "weight_map").items():
        # a plain file name: an index must not reach outside its own directory
        if (
            not isinstance(file, str)
            or not file.isprintable()
            or Path(file).name != file
            or file in _NO_FILES
        ):
            raise CheckpointError(f"{INDEX_FILE} must give a file name for {name}")
        listed[name] = file
    return listed

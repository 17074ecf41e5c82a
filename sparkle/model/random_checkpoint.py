"""Writes a checkpoint directory in the published layout with random weights. Knows no GPU and no torch.

For measuring loading, memory and speed where the published weights are not at hand; its answers mean nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

from sparkle.errors import ConfigError
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.encode_values import encoded
from sparkle.model.inventory import INDEX_FILE
from sparkle.model.published_config import config_json, generation_json
from sparkle.model.published_tensors import PublishedTensor, published_shards
from sparkle.model.random_values import Values
from sparkle.model.safetensors_header import ITEM_BYTES, LENGTH_BYTES

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
POOL_VALUES = (1 << 22) + 15
"""Drawn for each kind of tensor and shared by its tensors; prime, so that rows do not repeat in step."""

WRITERS = 8
Progress = Callable[[int], None]
"""Told the bytes of each write; called by several threads."""


def write_random_checkpoint(
    config: ModelConfig, directory: Path, *, text: Path, seed: int, progress: Progress
) -> None:
    """Make `directory` a checkpoint of these sizes, with tokenizer, chat template and end tokens of `text`.

    config.json comes last, so that a directory that was not finished does not load. Raises ConfigError where
    the directory is not empty, or cannot be written for lack of room or leave.
    """
    config = dataclasses.replace(config, end_tokens=read_config(text).end_tokens)
    shards = published_shards(config)
    try:
        _require_room(directory, checkpoint_bytes(config))
        _write_shards(shards, directory, seed, progress)
        for name in TEXT_FILES:
            shutil.copyfile(text / name, directory / name)
        files = {tensor.name: file for file, tensors in shards.items() for tensor in tensors}
        _write_json(directory / INDEX_FILE, {"metadata": {}, "weight_map": files})
        _write_json(directory / "generation_config.json", generation_json(config))
        _write_json(directory / "config.json", config_json(config))
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror or error}") from error


def checkpoint_bytes(config: ModelConfig) -> int:
    """Size of all tensors."""
    return sum(_size(tensor) for tensors in published_shards(config).values() for tensor in tensors)


def _require_room(directory: Path, size_bytes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty: nothing is overwritten, give a new directory")
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes:
        raise ConfigError(
            f"{directory} has {free_bytes / 1e9:.1f} GB free but the checkpoint has {size_bytes / 1e9:.1f} GB"
        )


def _write_shards(
    shards: dict[str, list[PublishedTensor]], directory: Path, seed: int, progress: Progress
) -> None:
    levels = random.Random(seed).randbytes(POOL_VALUES)
    kinds = {(tensor.values, tensor.dtype) for tensors in shards.values() for tensor in tensors}
    pools = {(values, dtype): memoryview(encoded(values, dtype, levels)) for values, dtype in kinds}
    with ThreadPoolExecutor(WRITERS, "shards") as pool:
        ends = [
            pool.submit(_write_shard, directory / file, tensors, pools, progress)
            for file, tensors in shards.items()
        ]
        try:
            for end in ends:
                end.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_shard(
    file: Path,
    tensors: Sequence[PublishedTensor],
    pools: dict[tuple[Values, str], memoryview],
    progress: Progress,
) -> None:
    # larger items first, as the library orders them: each then stands at a multiple of its size
    ordered = sorted(tensors, key=lambda tensor: (-ITEM_BYTES[tensor.dtype], tensor.name))
    with file.open("xb", buffering=0) as stream:
        stream.write(_header(ordered))
        for tensor in ordered:
            for piece in _bytes(tensor, pools[tensor.values, tensor.dtype]):
                written = 0
                while written < len(piece):
                    written += stream.write(piece[written:]) or 0
                progress(len(piece))


def _bytes(tensor: PublishedTensor, pool: memoryview) -> Iterator[memoryview]:
    """The tensor's bytes: the pool's from a place that its name gives, over and over."""
    start = crc32(tensor.name.encode()) % POOL_VALUES * ITEM_BYTES[tensor.dtype]
    left = _size(tensor)
    while left:
        piece = pool[start : start + left]
        yield piece
        left -= len(piece)
        start = 0


def _header(tensors: Sequence[PublishedTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        stop = start + _size(tensor)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH_BYTES)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def _size(tensor: PublishedTensor) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def _write_json(path: Path, fields: object) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

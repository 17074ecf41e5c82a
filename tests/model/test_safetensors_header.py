"""The header's places are the library's, and a file that does not add up is refused by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import (
    save_file,  # pyright: ignore[reportUnknownVariableType] (its path is of bytes or str, unknown which)
)

from sparkle.errors import CheckpointError
from sparkle.model.safetensors_header import stored_tensors

TENSORS = {
    "bf16": torch.arange(15, dtype=torch.bfloat16).view(3, 5),
    "f32": torch.arange(4, dtype=torch.float32).view(1, 2, 2),
    "fp8": torch.arange(7).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(0, 5),
}


def write(file: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def entry(start: int, stop: int, *, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [stop - start] if shape is None else shape,
        "data_offsets": [start, stop],
    }


def test_each_tensor_is_where_the_library_put_it(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file(TENSORS, file, metadata={"format": "pt"})
    found = stored_tensors(file)
    content = file.read_bytes()
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        place = found[name]
        assert place.file == file
        assert place.shape == tuple(tensor.shape)
        stored = content[place.start : place.start + place.size_bytes]
        assert stored == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert {name: place.dtype for name, place in found.items()} == {
        "bf16": "BF16",
        "f32": "F32",
        "fp8": "F8_E4M3",
        "scalar": "I64",
        "empty": "F32",
    }


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert stored_tensors(write(tmp_path / "a", {})) == {}
    assert stored_tensors(write(tmp_path / "a", {"__metadata__": {"format": "pt"}})) == {}


@pytest.mark.parametrize(
    ("header", "data", "told"),
    [
        (b"{", b"", "Expecting property name"),
        (b"\xff{}", b"", "decode"),
        (b"[" * 100_000, b"", "recursion"),
        ([], b"", "its header is no JSON object"),
        (b'{"a":1,"a":1}', b"", "its header has a name twice"),
        ({"a": 1}, b"", "its header gives a no dtype, shape and data_offsets"),
        ({"a": {"dtype": "U8", "shape": [1]}}, b"1", "its header gives a no dtype"),
        ({"a": {"dtype": "U8", "shape": 1, "data_offsets": [0, 1]}}, b"1", "the shape 1"),
        ({"a": entry(0, 1, dtype="U9")}, b"1", "the dtype U9"),
        ({"a": entry(0, 1, shape=[-1, -1])}, b"1", "the shape [-1, -1]"),
        ({"a": entry(0, 2, dtype="F32", shape=[2])}, b"12", "its header gives a, F32 [2], 2 bytes"),
        ({"a": entry(2, 0)}, b"12", "the shape [-2]"),
        ({"a": entry(1, 3)}, b"123", "a begins at byte"),
        ({"a": entry(0, 2), "b": entry(1, 3)}, b"123", "b begins at byte"),
        ({"a": entry(0, 1), "b": entry(2, 3)}, b"123", "b begins at byte"),
        ({"a": entry(-1, 1)}, b"12", "a begins at byte"),
        ({"a": entry(0, 3)}, b"12", "its tensors end at byte"),
        ({"a": entry(0, 3)}, b"1234", "its tensors end at byte"),
    ],
)
def test_a_header_that_does_not_add_up(tmp_path: Path, header: object, data: bytes, told: str) -> None:
    file = write(tmp_path / "layers-3.safetensors", header, data)
    with pytest.raises(CheckpointError, match=r"^layers-3\.safetensors is damaged: ") as caught:
        stored_tensors(file)
    assert told in str(caught.value)
    assert type(caught.value) is CheckpointError


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, length: int) -> None:
    file = tmp_path / "a.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"^a\.safetensors is damaged: "):
        stored_tensors(file)


def test_a_length_that_would_take_all_memory(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.write((200_000_000).to_bytes(8, "little"))
        stream.truncate(300_000_000)  # takes no room
    with pytest.raises(CheckpointError, match=re.escape("200000000 would be the header")):
        stored_tensors(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^a cannot be read: No such file"):
        stored_tensors(tmp_path / "a")

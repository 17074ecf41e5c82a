"""Every byte of a plan arrives once at its place, however it is cut up, and what cannot be read is told."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparkle.errors import CheckpointError
from sparkle.model import bulk_read
from sparkle.model.bulk_read import Work, copy_all
from sparkle.model.copy_plan import Part, Read, gather, spans
from tests.model.driver import CPU


def unread(raw: Tensor) -> None:
    raise AssertionError("nothing is read in this test")


def part(file: str, start: int, size_bytes: int) -> Part:
    return Part(file=Path(file), start=start, size_bytes=size_bytes, put=unread)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(0, 9)), max_size=12),
    st.integers(1, 30),
)
def test_reads_hold_every_part_once_without_gaps(
    places: list[tuple[str, int, int]], buffer_bytes: int
) -> None:
    parts = [part(*place) for place in places]
    reads = gather(parts, buffer_bytes=buffer_bytes)
    held = [part for read in reads for part in read.parts]
    assert sorted(map(id, held)) == sorted(id(part) for part in parts if part.size_bytes)
    assert held == sorted(held, key=lambda part: (part.file, part.start))
    for read in reads:
        assert len(read.parts) == 1 or read.size_bytes <= buffer_bytes
        assert read.size_bytes == sum(part.size_bytes for part in read.parts)
        assert {part.file for part in read.parts} == {read.file}


def test_neighbours_are_read_together_up_to_the_buffer() -> None:
    parts = [part("a", 4, 2), part("a", 0, 4), part("a", 6, 3), part("a", 10, 1), part("b", 11, 1)]
    reads = gather(parts, buffer_bytes=6)
    assert [(str(read.file), read.start, read.size_bytes) for read in reads] == [
        ("a", 0, 6),
        ("a", 6, 3),
        ("a", 10, 1),
        ("b", 11, 1),
    ]
    assert gather([], buffer_bytes=6) == []


def test_spans() -> None:
    assert list(spans(10, 4)) == [(0, 4), (4, 8), (8, 10)]
    assert list(spans(8, 4)) == [(0, 4), (4, 8)]
    assert list(spans(0, 4)) == []


def put(raw: Tensor, *, place: Tensor) -> None:
    place.copy_(raw)


def test_bytes_of_several_files_arrive_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_read, "BUFFER_BYTES", 1000)
    chance = random.Random(1)
    place = torch.zeros(20_000, dtype=torch.uint8)
    wanted = bytearray(20_000)
    parts: list[Part] = []
    for number in range(2):
        content = chance.randbytes(10_000)
        file = tmp_path / str(number)
        file.write_bytes(content)
        for start, stop in spans(10_000, 300):
            at = 20_000 - 10_000 * number - stop
            wanted[at : at + stop - start] = content[start:stop]
            to = place[at : at + stop - start]
            parts.append(Part(file=file, start=start, size_bytes=stop - start, put=partial(put, place=to)))
    chance.shuffle(parts)
    assert copy_all(parts, CPU) == 20_000
    assert place.numpy().tobytes() == bytes(wanted)


def test_a_read_that_comes_back_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv

    def short(file: int, buffers: list[memoryview], start: int) -> int:
        return whole(file, [buffers[0][:7]], start)

    monkeypatch.setattr(os, "preadv", short)
    file = tmp_path / "a"
    file.write_bytes(bytes(range(100)))
    place = torch.zeros(90, dtype=torch.uint8)
    copy_all([Part(file=file, start=10, size_bytes=90, put=partial(put, place=place))], CPU)
    assert place.numpy().tobytes() == bytes(range(10, 100))


def test_memory_made_in_inference_mode_can_be_filled(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12")
    with torch.inference_mode():
        place = torch.zeros(2, dtype=torch.uint8)
    copy_all([Part(file=file, start=0, size_bytes=2, put=partial(put, place=place))], CPU)
    assert place.numpy().tobytes() == b"12"


def test_nothing_to_read() -> None:
    assert copy_all([], CPU) == 0


def test_a_file_that_became_shorter_leaves_no_thread_anything_to_do(tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(10))
    seen: list[int] = []
    parts = [
        Part(file=file, start=start, size_bytes=1, put=lambda raw: seen.append(len(raw)))
        for start in (8, 9, 10, 1, 2)
    ]
    with file.open("rb", buffering=0) as opened:
        work = Work([Read([part]) for part in parts], {file: opened}, CPU)
        with pytest.raises(CheckpointError, match=r"^shard became shorter while it was read"):
            work.run()
        work.run()
    assert seen == [1, 1]


def test_a_failure_in_a_thread_is_told_to_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(10))
    with pytest.raises(CheckpointError, match=r"^shard became shorter while it was read"):
        copy_all([part(str(file), 10, 1)], CPU)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^shard cannot be read: No such file"):
        copy_all([part(str(tmp_path / "shard"), 0, 1)], CPU)

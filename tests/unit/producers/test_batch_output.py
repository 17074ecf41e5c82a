"""The output file of a batch: resumed after a stop at any byte, and never written over another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkle.errors import ConfigError
from sparkle.producers.batch_lines import BadLine, BatchLine, error_line
from sparkle.producers.batch_output import DUPLICATE, BatchOutput
from sparkle.schemas.job import Job


def good(number: int, custom_id: str) -> BatchLine:
    return BatchLine(number, custom_id, "sparkle", Job(prompt="x"))


def bad(number: int, custom_id: str | None, code: str) -> BadLine:
    return BadLine(number, custom_id, code, "why")


def answer(number: int, custom_id: str) -> dict[str, object]:
    response = {"status_code": 200, "request_id": "r", "body": {"text": "täxt\n"}}
    return {"id": f"batch_req_{number}", "custom_id": custom_id, "response": response, "error": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_a_new_file_has_nothing_and_takes_lines(path: Path) -> None:
    with BatchOutput(path) as output:
        assert not output.has(good(1, "a"))
        output.append(answer(1, "a"))
        output.append_error(bad(2, None, "invalid_json"), "invalid_json", "the line is not JSON")
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        answer(1, "a"),
        error_line(2, None, "invalid_json", "the line is not JSON"),
    ]


def test_half_a_surrogate_pair_is_written_as_its_escape(path: Path) -> None:
    """A name or a model in a line of the input can hold one; it must end neither the run nor the file."""
    fields = error_line(1, "a", "invalid_line", "body.\ud800, \\ud800 é 🙂: not supported")
    with BatchOutput(path) as output:
        output.append(fields)
    assert json.loads(path.read_text(encoding="utf-8")) == fields
    with BatchOutput(path) as output:
        assert output.has(good(1, "a"))


def test_what_is_there_counts_by_id_and_by_line(path: Path) -> None:
    with BatchOutput(path) as output:
        output.append(answer(1, "a"))
        output.append_error(bad(2, "b", "invalid_line"), "invalid_line", "why")
        output.append_error(bad(3, None, "invalid_json"), "invalid_json", "why")
        output.append_error(bad(4, "c", DUPLICATE), DUPLICATE, "why")
    with BatchOutput(path) as output:
        assert output.has(good(9, "a"))
        assert output.has(bad(2, "b", "invalid_line"))
        assert output.has(bad(3, None, "invalid_json"))
        assert output.has(bad(4, "c", DUPLICATE))
        # the first line of that id has no answer yet, and another bad line is another one
        assert not output.has(good(1, "c"))
        assert not output.has(bad(5, None, "invalid_json"))


def test_a_stop_at_any_byte_loses_the_last_line_only(path: Path) -> None:
    whole = b"".join(json.dumps(answer(n, f"id{n}"), ensure_ascii=False).encode() + b"\n" for n in (1, 2))
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole) + 1):
        path.write_bytes(whole[:length])
        with BatchOutput(path) as output:
            assert output.has(good(1, "id1"))
            # only the end of line may be missing
            has_second = length >= len(whole) - 1
            assert output.has(good(2, "id2")) is has_second
            if not has_second:
                output.append(answer(2, "id2"))
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("my notes", 1),
        ("my notes\n", 1),
        ('{"a": 1}\n', 1),
        ("[]\n", 1),
        ('{"id": "batch_req_1", "custom_id": "a"}\nnotes\n', 2),
        ('{"id": "batch_req_1", "custom_id": "a"}\n{"id": 5}', 2),
    ],
)
def test_another_file_is_refused_and_left_alone(path: Path, content: str, line: int) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"line {line} is no batch output; name another file with -o"):
        BatchOutput(path)
    assert path.read_text() == content


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be opened \(Is a directory\)"):
        BatchOutput(tmp_path)

"""The output file of a batch: what it has already, a mended last line, new lines. Knows no queue."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from sparkle.errors import ConfigError
from sparkle.producers.batch_lines import BadLine, BatchLine, error_line, line_id

DUPLICATE = "duplicate_custom_id"
LINE_START = b'{"id": "batch_req_'


class BatchOutput:
    """Lines are appended one write each, so that a stop at any moment leaves at most one half line."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file is no batch output: nothing in it is touched then."""
        self._path = path
        self._answered: set[str] = set()
        self._refused: set[str] = set()
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened ({error.strerror})") from None
        try:
            self._read()
        except ConfigError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def has(self, line: BatchLine | BadLine) -> bool:
        """Whether the line has its output already, from an earlier run."""
        if isinstance(line, BadLine) and (line.custom_id is None or line.code == DUPLICATE):
            return line_id(line.number) in self._refused
        return line.custom_id in self._answered

    def append(self, fields: Mapping[str, object]) -> None:
        """Write one line."""
        # half a surrogate pair, as an input line may name a field, is written as JSON's escape of it
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")
        self._file.write(line + b"\n")
        self._file.flush()

    def append_error(self, line: BatchLine | BadLine, code: str, message: str) -> None:
        """Write the line of something that failed."""
        self.append(error_line(line.number, line.custom_id, code, message))

    def _read(self) -> None:
        self._file.seek(0)
        whole_bytes = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                self._mend(line, number, whole_bytes)
                break
            self._note(self._fields(line, number))
            whole_bytes += len(line)
        self._file.seek(0, os.SEEK_END)

    def _mend(self, half: bytes, number: int, whole_bytes: int) -> None:
        """A run was stopped inside the last line: it goes, unless only its end of line is missing."""
        if not (half.startswith(LINE_START) or LINE_START.startswith(half)):
            raise self._foreign(number)
        try:
            fields = self._fields(half, number)
        except ConfigError:
            self._file.truncate(whole_bytes)
            return
        self._note(fields)
        self._file.write(b"\n")

    def _fields(self, line: bytes, number: int) -> Mapping[str, object]:
        try:
            fields: object = json.loads(line)
        except (ValueError, RecursionError):
            raise self._foreign(number) from None
        if not isinstance(fields, dict) or "id" not in fields or "custom_id" not in fields:
            raise self._foreign(number)
        return cast("dict[str, object]", fields)

    def _note(self, fields: Mapping[str, object]) -> None:
        custom_id, error = fields["custom_id"], fields.get("error")
        code = cast("dict[str, object]", error).get("code") if isinstance(error, dict) else None
        if custom_id is None or code == DUPLICATE:
            self._refused.add(str(fields["id"]))
        else:
            self._answered.add(str(custom_id))

    def _foreign(self, number: int) -> ConfigError:
        return ConfigError(f"{self._path}: line {number} is no batch output; name another file with -o")

"""Reads an uploaded file out of a multipart body, in memory alone. Knows no file's meaning.

Starlette's own form reader, on the same parser, keeps what is over 1 MB in a file on the disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers

from sparkle.producers.gateway.faults import ApiFault, invalid

MAX_NAME_CHARS = 255
MAX_PARTS = 16
MAX_FIELD_BYTES = 4096


@dataclass(slots=True)
class FormPart:
    """A part of a form: a field, or a file with its name."""

    name: str = ""
    file_name: str | None = None
    data: bytearray = field(default_factory=bytearray, repr=False)


@dataclass(frozen=True, slots=True)
class Upload:
    """What was sent."""

    name: str
    data: bytearray = field(repr=False)
    fields: dict[str, str] = field(repr=False)
    """The fields beside the file."""


async def read_upload(headers: Headers, pieces: AsyncIterable[bytes]) -> Upload:
    """The one file of a form, and its fields. Raises ApiFault for any other body."""
    kind, options = parse_options_header(headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise invalid("the body must be multipart/form-data with a file and its purpose")
    form = FormParts(options[b"boundary"])
    async for piece in pieces:
        form.write(piece)
    files = [part for part in form.parts if part.file_name is not None]
    if len(files) != 1 or files[0].name != "file":
        raise invalid("file: the form must have this one file", "file")
    fields = {part.name: _text(part.data) for part in form.parts if part.file_name is None}
    return Upload((files[0].file_name or "file")[:MAX_NAME_CHARS], files[0].data, fields)


class FormParts:
    """The parts of a form as far as they have come."""

    def __init__(self, boundary: bytes) -> None:
        """Raises ApiFault for a boundary that is none."""
        self.parts: list[FormPart] = []
        self._header = (bytearray(), bytearray())
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._header_end,
                    "on_part_data": self._data,
                },
            )
        except FormParserError:
            raise _no_form() from None

    def write(self, piece: bytes) -> None:
        """More of the body. Raises ApiFault where it is no form."""
        try:
            self._parser.write(piece)
        # the error's text could show what was sent
        except FormParserError:
            raise _no_form() from None

    def _begin(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise _no_form()
        self.parts.append(FormPart())

    def _header_end(self) -> None:
        name, value = (bytes(half) for half in self._header)
        for half in self._header:
            half.clear()
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        part = self.parts[-1]
        part.name = _text(options.get(b"name", b""))
        if b"filename" in options:
            part.file_name = _text(options[b"filename"])

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self.parts[-1]
        part.data += memoryview(data)[start:end]
        if part.file_name is None and len(part.data) > MAX_FIELD_BYTES:
            raise _no_form()


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


def _no_form() -> ApiFault:
    return invalid(f"the body is no multipart form of at most {MAX_PARTS} parts with one file")

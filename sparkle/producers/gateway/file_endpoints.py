"""The endpoints of /v1/files. Knows no batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from sparkle.producers.gateway.body import pieces
from sparkle.producers.gateway.endpoint import Call
from sparkle.producers.gateway.event_stream import EventStream
from sparkle.producers.gateway.faults import invalid
from sparkle.producers.gateway.kept_files import KeptFiles
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.gateway.upload import read_upload

UPLOAD_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
"""A file's end is the gateway's matter: what OpenAI's form can say of it is taken and not done."""

MAX_PAGE = 100

PAGE_QUERY = ("after", "limit")
"""What says which part of a list is wanted."""

PIECE_BYTES = 65_536
"""A file is sent by so much at a time: who reads slowly holds no copy of it."""


class FileEndpoints:
    """Upload, list, look, read, delete."""

    def __init__(self, files: KeptFiles, settings: GatewaySettings) -> None:
        self._files = files
        self._settings = settings

    async def create(self, call: Call) -> ASGIApp:
        """POST /v1/files."""
        body = pieces(
            call.request,
            call.held,
            max_bytes=self._settings.file_max_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        upload = await read_upload(call.request.headers, body)
        for name in upload.fields:
            if name not in UPLOAD_FIELDS:
                raise invalid("only file and purpose are supported", code="unsupported_field")
        if upload.fields.get("purpose") != "batch":
            raise invalid("purpose: must be batch", "purpose")
        file = self._files.add(call.principal.tenant, upload.name, "batch", upload.data)
        self._files.expire(file)
        return JSONResponse(file.fields())

    async def list(self, call: Call) -> ASGIApp:
        """GET /v1/files."""
        purpose = call.request.query_params.get("purpose")
        files = self._files.of(call.principal.tenant)
        shown = [file for file in files if purpose in (None, file.purpose)]
        if call.request.query_params.get("order") == "asc":
            shown.reverse()
        return page(call.request, shown)

    async def show(self, call: Call) -> ASGIApp:
        """GET /v1/files/{file}."""
        return JSONResponse(self._files.get(call.principal.tenant, path_id(call.request)).fields())

    async def content(self, call: Call) -> ASGIApp:
        """GET /v1/files/{file}/content."""
        file = self._files.get(call.principal.tenant, path_id(call.request))
        # a batch may write more of it meanwhile
        size_bytes = len(file.data)
        return EventStream(
            _pieces(file.data, size_bytes),
            send_timeout_s=self._settings.send_timeout_s,
            headers=[
                (b"content-type", b"application/octet-stream"),
                (b"content-length", str(size_bytes).encode()),
                (b"cache-control", b"no-store"),
            ],
        )

    async def delete(self, call: Call) -> ASGIApp:
        """DELETE /v1/files/{file}."""
        file_id = path_id(call.request)
        self._files.delete(call.principal.tenant, file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})


async def _pieces(data: bytearray, size_bytes: int) -> AsyncGenerator[bytes]:
    for start in range(0, size_bytes, PIECE_BYTES):
        yield bytes(data[start : min(start + PIECE_BYTES, size_bytes)])


class Listed(Protocol):
    """Something with an id that can be shown."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    def fields(self) -> dict[str, object]:
        """As OpenAI shows it."""
        ...


L = TypeVar("L", bound=Listed)


def path_id(request: Request) -> str:
    """The id in the path."""
    return str(request.path_params["id"])


def page(request: Request, things: Sequence[L]) -> ASGIApp:
    """A page of a list: of `limit`, behind the id `after`. Raises ApiFault."""
    after, limit = request.query_params.get("after"), request.query_params.get("limit", str(MAX_PAGE))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 5 and int(limit) >= 1):
        raise invalid("limit: must be a number from 1 on", "limit")
    ids = [thing.id for thing in things]
    start = ids.index(after) + 1 if after in ids else 0
    if after is not None and after not in ids:
        raise invalid("after: names none of the list", "after")
    end = start + min(int(limit), MAX_PAGE)
    shown = things[start:end]
    return JSONResponse(
        {
            "object": "list",
            "data": [thing.fields() for thing in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": end < len(things),
        }
    )

"""The gateway as one ASGI application, put together from its parts. Opens nothing; knows no signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sparkle.producers.dispatcher import Dispatcher
from sparkle.producers.gateway.access import Access
from sparkle.producers.gateway.batch_endpoints import BatchEndpoints
from sparkle.producers.gateway.body import BodyBudget
from sparkle.producers.gateway.desk import Desk
from sparkle.producers.gateway.endpoint import Door, Endpoint, fault_response
from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.file_endpoints import FileEndpoints
from sparkle.producers.gateway.generating import Forms, Generating
from sparkle.producers.gateway.kept_files import KeptFiles
from sparkle.producers.gateway.metrics import GatewayMetrics
from sparkle.producers.gateway.model_endpoints import ModelEndpoints
from sparkle.producers.gateway.models import ServedModels
from sparkle.producers.gateway.openapi import document
from sparkle.producers.gateway.paths import Path, paths
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.control import WorkerRoster

DISTRIBUTION = "sparkle-inference"


@dataclass(frozen=True, slots=True)
class Bus:
    """The queue as the gateway needs it: connected, its dispatcher and its roster started."""

    connection: Connection
    dispatcher: Dispatcher
    roster: WorkerRoster


class Gateway:
    """One gateway: its application, and what is to be closed behind it."""

    def __init__(self, bus: Bus, access: Access, settings: GatewaySettings, client: ClientSettings) -> None:
        """`client` says the region and how fast workers are."""
        self.metrics = GatewayMetrics()
        self._bus = bus
        self._desk = Desk(
            bus.dispatcher,
            access,
            self.metrics,
            max_open=settings.max_open,
            accept_timeout_s=settings.accept_timeout_s,
        )
        models = ServedModels(bus.roster, settings.always_served)
        forms = Forms(settings, models, client.rates)
        generating = Generating(settings, forms, self._desk, self.metrics)
        self._files = KeptFiles(
            tenant_max_bytes=settings.files_max_bytes,
            keep_s=settings.file_s,
            on_size=self.metrics.file_bytes.set,
        )
        self._batches = BatchEndpoints(self._files, forms, generating, settings, self.metrics)
        table = paths(generating, ModelEndpoints(models), FileEndpoints(self._files, settings), self._batches)
        door = Door(access, client.region, BodyBudget(settings.bodies_max_bytes), self.metrics)
        self._document = document(table, version=_version())
        self.app: ASGIApp = Starlette(
            routes=[*self._open_routes(), *_routes(table, door)],
            exception_handlers={HTTPException: _not_routed},
        )

    async def close(self) -> None:
        """End what is under way; files are gone."""
        await self._batches.close()
        await self._desk.close()
        self._files.clear()

    def _open_routes(self) -> list[Route]:
        """What needs no key."""

        async def healthy(_: Request) -> Response:
            return PlainTextResponse("ok")

        async def ready(_: Request) -> Response:
            if self._bus.connection.is_up:
                return PlainTextResponse("ready")
            return PlainTextResponse("the queue is away", status_code=503)

        async def metrics(_: Request) -> Response:
            return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        async def openapi(_: Request) -> Response:
            return JSONResponse(self._document)

        opened = {"/healthz": healthy, "/readyz": ready, "/metrics": metrics, "/openapi.json": openapi}
        # what load generators of the field ask first: vLLM's name for it
        opened["/health"] = ready
        return [Route(path, answer, methods=["GET"]) for path, answer in opened.items()]


def _routes(table: Sequence[Path], door: Door) -> list[Route]:
    """One route a path; its methods side by side."""
    routes: list[Route] = []
    for path in table:
        # a model's name can have a slash in it
        place = path.path.replace("{id}", "{id:path}" if path.path.startswith("/v1/models") else "{id}")
        endpoint = Endpoint(f"{path.method} {path.path}", door, path.answer, path.query)
        routes.append(Route(place, endpoint, methods=[path.method]))
    return routes


async def _not_routed(_: Request, error: Exception) -> Response:
    """A path or a method that is none of ours."""
    assert isinstance(error, HTTPException), "registered for these alone"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    fault = ApiFault(error.status_code, code, "no such path or method here", headers=error.headers or {})
    return fault_response(fault)


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0"

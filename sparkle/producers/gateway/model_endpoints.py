"""The endpoints of /v1/models. Knows no key."""

from __future__ import annotations

import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from sparkle.producers.gateway.endpoint import Call
from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.file_endpoints import path_id
from sparkle.producers.gateway.models import ServedModels


class ModelEndpoints:
    """List and look."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._since_s = int(time.time())

    async def list(self, call: Call) -> ASGIApp:
        """GET /v1/models."""
        names = self._models.names(call.principal)
        return JSONResponse({"object": "list", "data": [self._fields(name) for name in names]})

    async def show(self, call: Call) -> ASGIApp:
        """GET /v1/models/{model}."""
        name = path_id(call.request)
        if name not in self._models.names(call.principal):
            raise ApiFault(404, "model_not_found", "no such model is served for this key", "model")
        return JSONResponse(self._fields(name))

    def _fields(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._since_s, "owned_by": "sparkle"}

"""The endpoints of /v1/batches, and the batches that are worked on. Knows no line of theirs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from typing import Literal

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from sparkle.producers.gateway.batch import ENDED, Batch, BatchState
from sparkle.producers.gateway.batch_input import Url
from sparkle.producers.gateway.batch_run import BatchRun
from sparkle.producers.gateway.body import read_as
from sparkle.producers.gateway.endpoint import Call
from sparkle.producers.gateway.faults import ApiFault, invalid, not_found
from sparkle.producers.gateway.file_endpoints import page, path_id
from sparkle.producers.gateway.generating import Forms, Generating
from sparkle.producers.gateway.kept_files import TENANTS_SHARE, KeptFiles
from sparkle.producers.gateway.metrics import GatewayMetrics
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.schemas.json_object import JsonObject
from sparkle.schemas.message import Part

log = logging.getLogger(__name__)

MAX_BATCHES = 100
"""Batches of one tenant."""


class BatchRequest(Part):
    """A batch to work on."""

    input_file_id: str
    endpoint: Url
    completion_window: Literal["24h"]
    metadata: JsonObject | None = None


class BatchEndpoints:
    """Create, list, look, cancel."""

    def __init__(
        self,
        files: KeptFiles,
        forms: Forms,
        generating: Generating,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
    ) -> None:
        self._files = files
        self._forms = forms
        self._generating = generating
        self._settings = settings
        self._metrics = metrics
        self._places = asyncio.Semaphore(settings.batch_jobs)
        self._batches: dict[str, Batch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def create(self, call: Call) -> ASGIApp:
        """POST /v1/batches."""
        asked = await read_as(
            BatchRequest,
            call.request,
            call.held,
            max_bytes=self._settings.body_max_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        tenant = call.principal.tenant
        file = self._files.get(tenant, asked.input_file_id)
        if file.purpose != "batch":
            raise invalid("input_file_id: not a file for a batch", "input_file_id")
        if sum(batch.tenant == tenant for batch in self._batches.values()) >= MAX_BATCHES:
            raise ApiFault(429, "too_many_batches", f"{MAX_BATCHES} batches are kept; wait for their time")
        self._require_room(tenant, len(file.data))
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            tenant=tenant,
            url=asked.endpoint,
            input_file_id=file.id,
            input_bytes=len(file.data),
            metadata=asked.metadata,
        )
        run = BatchRun(
            batch,
            call.principal,
            forms=self._forms,
            generating=self._generating,
            files=self._files,
            places=self._places,
        )
        self._begin(batch, run, file.data)
        return JSONResponse(batch.fields())

    async def list(self, call: Call) -> ASGIApp:
        """GET /v1/batches."""
        batches = reversed(self._batches.values())
        return page(call.request, [batch for batch in batches if batch.tenant == call.principal.tenant])

    async def show(self, call: Call) -> ASGIApp:
        """GET /v1/batches/{batch}."""
        return JSONResponse(self._get(call).fields())

    async def cancel(self, call: Call) -> ASGIApp:
        """POST /v1/batches/{batch}/cancel."""
        batch = self._get(call)
        if batch.state in ENDED:
            raise ApiFault(409, "batch_ended", f"the batch is {batch.state}")
        batch.move_to(BatchState.CANCELLING)
        self._tasks[batch.id].cancel()
        return JSONResponse(batch.fields())

    async def close(self) -> None:
        """Cancel all that is worked on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()

    def _get(self, call: Call) -> Batch:
        batch = self._batches.get(path_id(call.request))
        if batch is None or batch.tenant != call.principal.tenant:
            raise not_found("batch")
        return batch

    def _require_room(self, tenant: str, size_bytes: int) -> None:
        """Raises ApiFault: a batch holds what it works on, also when its file is deleted."""
        held_bytes = Counter[str]()
        for batch_id in self._tasks:
            batch = self._batches[batch_id]
            held_bytes[batch.tenant] += batch.input_bytes
        own, most = held_bytes[tenant], self._settings.files_max_bytes
        if own + size_bytes > most:
            limit = f"batches work on {own} bytes and {size_bytes} more would be over {most}"
            raise ApiFault(429, "too_many_batches", f"{limit}; wait until some have ended")
        if held_bytes.total() + size_bytes > TENANTS_SHARE * most:
            raise ApiFault(
                503, "overloaded", "the gateway works on as many batches as it may; try again later"
            )

    def _begin(self, batch: Batch, run: BatchRun, data: bytearray) -> None:
        self._batches[batch.id] = batch
        task = asyncio.get_running_loop().create_task(run.run(data))
        self._tasks[batch.id] = task
        self._metrics.batches.set(len(self._tasks))
        task.add_done_callback(lambda done: self._ended(batch, done))

    def _ended(self, batch: Batch, done: asyncio.Task[None]) -> None:
        del self._tasks[batch.id]
        self._metrics.batches.set(len(self._tasks))
        if batch.state not in ENDED and done.cancelled():
            # before its first step
            batch.move_to(BatchState.CANCELLED)
        elif not done.cancelled() and (error := done.exception()) is not None:
            log.error("batch_failed", extra={"batch": batch.id, "error": type(error).__name__})
            batch.move_to(BatchState.FAILED)
        loop = asyncio.get_running_loop()
        self._timers[batch.id] = loop.call_later(self._settings.file_s, self._forget, batch.id)

    def _forget(self, batch_id: str) -> None:
        self._batches.pop(batch_id, None)
        self._timers.pop(batch_id, None)

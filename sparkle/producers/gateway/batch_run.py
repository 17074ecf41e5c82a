"""Works on one batch: its lines to answers, its answers to files. Knows no HTTP and no other batch."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Sequence

from sparkle.errors import SparkleError
from sparkle.producers.gateway.access import Principal
from sparkle.producers.gateway.batch import Batch, BatchState
from sparkle.producers.gateway.batch_input import Wanted, read_lines
from sparkle.producers.gateway.chat_request import ChatRequest
from sparkle.producers.gateway.completion_request import CompletionRequest
from sparkle.producers.gateway.faults import RETRY_S, ApiFault, from_error
from sparkle.producers.gateway.generating import Asking, Forms, Generating
from sparkle.producers.gateway.kept_files import KeptFile, KeptFiles

log = logging.getLogger(__name__)

RETRY_CODES = frozenset({"rate_limit_exceeded", "queue_full", "queue_unavailable", "no_worker", "overloaded"})
"""A line that meets one of these waits and is sent again."""

MAX_RETRY_S = 60.0


class BatchRun:
    """One batch's work."""

    def __init__(
        self,
        batch: Batch,
        principal: Principal,
        *,
        forms: Forms,
        generating: Generating,
        files: KeptFiles,
        places: asyncio.Semaphore,
    ) -> None:
        """`places` are those of all batches on the queue."""
        self._batch = batch
        self._principal = principal
        self._forms = forms
        self._generating = generating
        self._files = files
        self._places = places
        self._output: KeptFile | None = None
        self._errors: KeptFile | None = None

    async def run(self, data: bytearray) -> None:
        """From its file, which is only read, to its end; when cancelled, what was answered is kept."""
        batch = self._batch
        try:
            wanted, batch.errors = await read_lines(data, batch.url)
            # a file that is deleted meanwhile is to go
            del data
            if batch.errors:
                batch.move_to(BatchState.FAILED)
                return
            batch.total = len(wanted)
            batch.move_to(BatchState.IN_PROGRESS)
            async with asyncio.timeout(batch.expires_s - time.time()):
                await self._answer_all(wanted)
            batch.move_to(BatchState.FINALIZING)
            batch.move_to(BatchState.COMPLETED)
        except TimeoutError:
            batch.move_to(BatchState.EXPIRED)
        except asyncio.CancelledError:
            batch.move_to(BatchState.CANCELLED)
        finally:
            for file in (self._output, self._errors):
                if file is not None:
                    self._files.expire(file)

    async def _answer_all(self, wanted: Sequence[Wanted]) -> None:
        async with asyncio.TaskGroup() as lines:
            for one in wanted:
                # a task only once there is a place: a batch of many lines costs no task each
                await self._places.acquire()
                lines.create_task(self._answer_and_free(one))

    async def _answer_and_free(self, wanted: Wanted) -> None:
        try:
            await self._answer(wanted)
        finally:
            self._places.release()

    async def _answer(self, wanted: Wanted) -> None:
        wait_s = float(RETRY_S)
        while True:
            try:
                asking = self._asking(wanted)
                body = await self._generating.whole(self._principal, asking)
            except (ApiFault, SparkleError) as error:
                fault = error if isinstance(error, ApiFault) else from_error(error)
                if fault.code not in RETRY_CODES:
                    self._write_fault(wanted, fault)
                    return
                log.debug("batch_line_again", extra={"batch": self._batch.id, "code": fault.code})
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_RETRY_S)
            else:
                self._write(wanted, 200, body)
                return

    def _asking(self, wanted: Wanted) -> Asking:
        """The line made ready. Raises ApiFault."""
        left_s = max(1.0, self._batch.expires_s - time.time())
        match wanted.request:
            case ChatRequest() as chat:
                asking = self._forms.chat(chat, self._principal, deadline_s=left_s)
            case CompletionRequest() as completion:
                asking = self._forms.completion(completion, self._principal, deadline_s=left_s)
            case response:
                asking = self._forms.response(response, self._principal, deadline_s=left_s)
        return asking.for_later()

    def _write_fault(self, wanted: Wanted, fault: ApiFault) -> None:
        self._batch.failed += 1
        line = _line(wanted, fault.status, fault.body())
        try:
            if self._errors is None:
                self._errors = self._new_file("errors")
                self._batch.error_file_id = self._errors.id
            self._files.append(self._errors, line)
        except ApiFault:
            # it is counted; there is no room left to say why
            log.warning("batch_error_unwritten", extra={"batch": self._batch.id})

    def _write(self, wanted: Wanted, status: int, body: dict[str, object]) -> None:
        try:
            if self._output is None:
                self._output = self._new_file("output")
                self._batch.output_file_id = self._output.id
            self._files.append(self._output, _line(wanted, status, body))
        except ApiFault as full:
            self._write_fault(wanted, full)
        else:
            self._batch.completed += 1

    def _new_file(self, kind: str) -> KeptFile:
        return self._files.add(self._principal.tenant, f"{self._batch.id}_{kind}.jsonl", "batch_output")


def _line(wanted: Wanted, status: int, body: dict[str, object]) -> bytes:
    request_id = secrets.token_hex(12)
    fields = {
        "id": f"batch_req_{request_id}",
        "custom_id": wanted.custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": None,
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"

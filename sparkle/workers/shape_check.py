"""Holds a finished answer against the shape that its job asked for. Knows no grammar and no process.

An answer that was kept to its shape and does not have it is a fault of ours: it is counted, and never given
out. Of any other answer the result says whether it has its shape.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Protocol

from sparkle.errors import FailureCode
from sparkle.schemas.answer import Failure, Result
from sparkle.schemas.job import Job
from sparkle.schemas.shape import ChoiceShape, JsonObjectShape, JsonSchemaShape
from sparkle.workers.metrics import WorkerMetrics

log = logging.getLogger(__name__)

_NO_ARGUMENTS: dict[str, object] = {"type": "object", "maxProperties": 0}


class Checks(Protocol):
    """What knows schemas: `check_client.CheckProcess`."""

    async def holds(self, checks: Sequence[tuple[str, str]]) -> bool | None:
        """Whether each text is JSON and valid under its schema; None where that cannot be said."""
        ...


class ShapeCheck:
    """Checks answers, and counts the faults."""

    def __init__(self, checks: Checks, metrics: WorkerMetrics) -> None:
        self._checks = checks
        self._metrics = metrics

    async def checked(self, job: Job, result: Result, *, enforced: bool, cut: bool) -> Result | Failure:
        """The result, with `valid` where its shape was not `enforced` to its end; a Failure for a fault.

        `cut`: a call was begun that did not come to its end.
        """
        if job.response_format is None and not job.tools:
            return result
        valid = False if cut else await self._has_shape(job, result)
        if not enforced:
            return result.model_copy(update={"valid": valid})
        if valid is not False:
            return result
        self._metrics.grammar_violations.inc()
        log.error("grammar_violated", extra={"job": job.id, "tenant": job.tenant})
        return Failure(
            job=result.job,
            attempt=result.attempt,
            code=FailureCode.ENGINE_ERROR,
            message="the answer is not of the shape that it was kept to: a fault of ours, and counted",
            retryable=False,
        )

    async def _has_shape(self, job: Job, result: Result) -> bool | None:
        """None where it cannot be said, or where the job left the shape to the model."""
        if result.tool_calls:
            return await self._checks.holds(_call_checks(job, result))
        if job.tools is not None and job.tool_choice not in ("auto", "none"):
            return False
        match job.response_format:
            case JsonSchemaShape(json_schema=schema):
                return await self._checks.holds([(json.dumps(schema), result.text)])
            case JsonObjectShape():
                return await self._checks.holds([('{"type": "object"}', result.text)])
            case ChoiceShape(choices=choices):
                return result.text in choices
            case _:
                return None


def _call_checks(job: Job, result: Result) -> list[tuple[str, str]]:
    schemas = {tool.name: json.dumps(tool.parameters or _NO_ARGUMENTS) for tool in job.tools or ()}
    return [
        (schemas.get(call.name, "false"), json.dumps(call.arguments, ensure_ascii=False))
        for call in result.tool_calls
    ]

"""Finished answers against their shapes: what is told, what is a fault, and what a check cannot hold up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sparkle.errors import FailureCode
from sparkle.schemas.answer import Failure, FinishReason, Result, Usage
from sparkle.schemas.job import Job, Turn
from sparkle.schemas.shape import ChoiceShape, GrammarShape, JsonObjectShape, JsonSchemaShape, RegexShape
from sparkle.schemas.tools import Tool, ToolCall
from sparkle.workers.check_client import CheckProcess
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.shape_check import ShapeCheck

CANARY = "canary-7f3a"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [Tool(name="get", parameters=SCHEMA), Tool(name="stop")]
RIGHT, WRONG = ToolCall(id="c", name="get", arguments={"a": 1}), ToolCall(id="c", name="get", arguments={})
STOP = ToolCall(id="c", name="stop", arguments={})
BAD_STOP = ToolCall(id="c", name="stop", arguments={"a": 1})


def job(**asked: Any) -> Job:
    return Job(messages=[Turn(role="user", content="?")], **asked)


def result(text: str = "", calls: Sequence[ToolCall] = ()) -> Result:
    return Result(
        job=job().id,
        attempt=1,
        worker="w",
        text=text,
        tokens=[1],
        tool_calls=[*calls],
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0),
    )


@asynccontextmanager
async def checking(**settings: float) -> AsyncGenerator[tuple[CheckProcess, ShapeCheck, WorkerMetrics]]:
    # a machine that has much else to do makes no check too long
    checks, metrics = CheckProcess(**{"check_s": 60.0, **settings}), WorkerMetrics()
    try:
        yield checks, ShapeCheck(checks, metrics), metrics
    finally:
        await checks.close()


OF_SCHEMA = job(response_format=JsonSchemaShape(schema=SCHEMA))
WITH_TOOLS = job(tools=TOOLS)
CASES: list[tuple[Job, Result, bool | None]] = [
    (OF_SCHEMA, result('{"a": 1}'), True),
    (OF_SCHEMA, result('{"a": "x"}'), False),
    (OF_SCHEMA, result('{"a": 1'), False),
    (job(response_format=JsonObjectShape()), result("{}"), True),
    (job(response_format=JsonObjectShape()), result("[]"), False),
    (job(response_format=ChoiceShape(choices=["yes"])), result("yes"), True),
    (job(response_format=ChoiceShape(choices=["yes"])), result("ye"), False),
    (job(response_format=RegexShape(pattern="a")), result("b"), None),
    (job(response_format=GrammarShape(grammar='start: "a"')), result("b"), None),
    (WITH_TOOLS, result("prose"), None),
    (WITH_TOOLS, result(calls=[RIGHT, STOP]), True),
    (WITH_TOOLS, result(calls=[STOP, WRONG]), False),
    (WITH_TOOLS, result(calls=[BAD_STOP]), False),
    (WITH_TOOLS, result(calls=[ToolCall(id="c", name="other", arguments={})]), False),
    (job(tools=TOOLS, tool_choice="required"), result("prose"), False),
    (job(tools=TOOLS, tool_choice="none"), result("prose"), None),
    (job(tools=TOOLS, response_format=JsonObjectShape()), result("{"), False),
    # of a schema that is none nothing can be said
    (job(response_format=JsonSchemaShape(schema={"type": 5})), result("{}"), None),
    (job(), result("text"), None),
]


async def test_an_answer_that_was_not_kept_to_its_end_says_whether_it_has_its_shape() -> None:
    async with checking() as (_, check, metrics):
        for asked, answer, valid in CASES:
            found = await check.checked(asked, answer, enforced=False, cut=False)
            assert found == answer.model_copy(update={"valid": valid}), (asked, answer)
        assert metrics.registry.get_sample_value("sparkle_grammar_violations_total") == 0


async def test_one_that_was_is_a_counted_fault_without_its_shape(caplog: pytest.LogCaptureFixture) -> None:
    async with checking() as (_, check, metrics):
        for asked, answer, valid in CASES:
            found = await check.checked(asked, answer, enforced=True, cut=False)
            if valid is False:
                assert isinstance(found, Failure)
                assert (found.code, found.retryable) == (FailureCode.ENGINE_ERROR, False)
                assert "fault of ours" in found.message
            else:
                assert found == answer
        faults = sum(valid is False for _, _, valid in CASES)
        assert metrics.registry.get_sample_value("sparkle_grammar_violations_total") == faults
    assert [record.message for record in caplog.records].count("grammar_violated") == faults


async def test_a_call_that_was_cut_is_not_of_its_shape() -> None:
    async with checking() as (_, check, _metrics):
        found = await check.checked(WITH_TOOLS, result(calls=[RIGHT]), enforced=False, cut=True)
        assert isinstance(found, Result)
        assert found.valid is False


def hostile(levels: int) -> dict[str, Any]:
    """Takes 2 to the power of `levels` steps to check."""
    definitions: dict[str, Any] = {
        f"{level}": {"allOf": [{"$ref": f"#/$defs/{level + 1}"}, {"$ref": f"#/$defs/{level + 1}"}]}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/0", "$defs": {**definitions, f"{levels}": {}}}


async def test_a_check_that_takes_too_long_costs_its_own_answer_only() -> None:
    async with checking(check_s=3.0) as (checks, _, _metrics):
        slow = [(f"{hostile(60)}".replace("'", '"'), "1")]
        answers = await asyncio.gather(checks.holds(slow), checks.holds([("{}", "1")]))
        assert (answers[0], answers[1]) == (None, True)


async def test_one_that_nobody_waits_for_leaves_no_verdict_to_the_next() -> None:
    async with checking() as (checks, _, _metrics):
        assert await checks.holds([("true", "1")]) is True
        slow = asyncio.create_task(checks.holds([(f"{hostile(60)}".replace("'", '"'), "1")]))
        # as far as it gets by itself: the question is out
        await asyncio.wait({slow}, timeout=0.5)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await checks.holds([("false", "1")]) is False

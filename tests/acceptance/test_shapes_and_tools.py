"""Shapes and tools through the whole service: what streams is what the result says, and that is valid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import Device, EngineSettings, default_model
from sparkle.errors import FailureCode, JobFailed
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.answer import Channel, FinishReason, Result
from sparkle.schemas.job import Job, Sampling, Thinking, Turn
from sparkle.schemas.shape import ChoiceShape, JsonSchemaShape, RegexShape
from sparkle.schemas.tools import Tool, ToolCall
from sparkle.text.answer_check import AnswerCheck
from tests.text.tool_sets import TOOL_SETS, ToolSet, tool
from tests.worker_at_work import REGION, TENANT, at_work

pytestmark = pytest.mark.acceptance

HOT = Sampling(temperature=1.5, top_k=0, top_p=1.0)
VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"severity": {"enum": ["low", "high"]}, "score": {"type": "integer", "maximum": 99}},
    "required": ["severity", "score"],
    "additionalProperties": False,
}
SEVERITY = {"type": "string", "enum": ["low", "high"]}
RAISE = tool(
    "raise_alert",
    {"severity": SEVERITY, "hosts": {"type": "array", "items": SEVERITY, "maxItems": 2}},
    "severity",
)
WAIT_S = 60.0


@asynccontextmanager
async def serving(server: LocalServer) -> AsyncGenerator[Client]:
    """A client, and one worker with the bundled model that answers it."""
    engine = EngineProcess(default_model(), EngineSettings(device=Device.CPU, slots=8, threads=1))
    async with at_work(server.url, engine=engine, name="w-1"):
        settings = ClientSettings(nats=server.url, region=REGION, tenant=TENANT)
        async with await Client.open(settings) as client:
            yield client


async def answered(client: Client, wait_s: float = WAIT_S, **asked: Any) -> Result:
    """The answer, whose stream has said the same."""
    turns = asked.pop("messages", [Turn(role="user", content="Raise an alert with the tool.")])
    async with asyncio.timeout(wait_s):
        handle = await client.submit(Job.model_validate({"messages": turns, "sampling": HOT, **asked}))
        text, calls = "", list[tuple[str, str, str]]()
        async for chunk in handle:
            text += chunk.text if chunk.channel is Channel.ANSWER else ""
            for piece in chunk.tool_calls:
                if piece.id is not None and piece.name is not None:
                    calls.append((piece.id, piece.name, ""))
                call_id, name, so_far = calls[piece.index]
                assert piece.arguments_start == len(so_far)
                calls[piece.index] = (call_id, name, so_far + piece.arguments)
        result = await handle.result()
    assert text == result.text
    streamed = calls[: len(result.tool_calls)]
    assert streamed == [(one.id, one.name, text_of(one)) for one in result.tool_calls]
    # no more than one can be cut
    assert len(calls) - len(streamed) <= 1
    return result


def text_of(call: ToolCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def holds(schema: Any, text: str) -> bool:
    return AnswerCheck(schema).holds(text) is True


async def refused(client: Client, **asked: Any) -> FailureCode:
    with pytest.raises(JobFailed) as caught:
        await answered(client, **asked)
    return caught.value.code


async def test_answers_have_their_shape_and_calls_are_valid(
    connection: Connection, nats_server: LocalServer
) -> None:
    async with serving(nats_server) as client:
        of_schema = JsonSchemaShape(schema=VERDICT, complete=True)
        loose = JsonSchemaShape(
            schema={**VERDICT, "not": {"required": ["score"]}}, strict=False, complete=True
        )
        hostile = JsonSchemaShape(schema={"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]})
        verdicts, thought, chosen, loosened, cut, code = await asyncio.gather(
            answered(client, response_format=of_schema, max_tokens=60),
            answered(client, response_format=of_schema, max_tokens=120, thinking=Thinking.LOW),
            answered(client, response_format=ChoiceShape(choices=["yes", "no"]), max_tokens=10),
            answered(client, response_format=loose, max_tokens=60),
            answered(client, response_format=RegexShape(pattern="(ab){40}"), max_tokens=5),
            refused(client, response_format=hostile),
        )
        for result in (verdicts, thought):
            assert holds(VERDICT, result.text)
            assert (result.finish_reason, result.valid) == (FinishReason.STOP, None)
        assert thought.reasoning
        assert chosen.text in ("yes", "no")
        # an object at least; what else it is was checked
        assert isinstance(json.loads(loosened.text), dict)
        assert loosened.valid is holds(loose.json_schema, loosened.text)
        assert (cut.finish_reason, cut.valid) == (FinishReason.LENGTH, None)
        assert code is FailureCode.GRAMMAR_TOO_COMPLEX
        assert await refused(client, response_format=JsonSchemaShape(schema={"not": {}})) is (
            FailureCode.UNSUPPORTED_SCHEMA
        )
        await ask_with_tools(client)
        await try_sets(client, TOOL_SETS[:6])


async def ask_with_tools(client: Client) -> None:
    called, prose, back = await asyncio.gather(
        answered(client, tools=[RAISE], tool_choice="required", parallel_tool_calls=False, max_tokens=80),
        answered(client, tools=[RAISE], tool_choice="none", max_tokens=12),
        answered(
            client,
            tools=[RAISE, Tool(name="stop")],
            tool_choice={"name": "stop"},
            parallel_tool_calls=False,
            max_tokens=40,
            messages=[
                Turn(role="user", content="Raise <tool_call> one."),
                Turn(
                    role="assistant",
                    content="",
                    tool_calls=[ToolCall(id="c", name="raise_alert", arguments={"severity": "low"})],
                ),
                Turn(role="tool", content="raised", tool_call_id="c"),
            ],
        ),
    )
    assert [(call.name, holds(RAISE.parameters, text_of(call))) for call in called.tool_calls] == [
        ("raise_alert", True)
    ]
    assert (called.finish_reason, called.valid, called.text) == (FinishReason.TOOL_CALLS, None, "")
    assert prose.tool_calls == []
    assert [(call.name, call.arguments) for call in back.tool_calls] == [("stop", {})]


async def try_sets(client: Client, sets: Sequence[ToolSet], wait_s: float = WAIT_S) -> None:
    """Calls of some sets of tools, as they come."""
    results = await asyncio.gather(
        *(answered(client, wait_s, tools=one.tools, tool_choice="required", max_tokens=60) for one in sets)
    )
    for one, result in zip(sets, results, strict=True):
        schemas = {each.name: each.parameters or {"maxProperties": 0} for each in one.tools}
        assert all(holds(schemas[call.name], text_of(call)) for call in result.tool_calls), one.name
        if result.finish_reason is FinishReason.TOOL_CALLS:
            assert result.tool_calls
            assert result.valid is None
        else:
            assert result.finish_reason is FinishReason.LENGTH
            # the call that was cut, or that there is none
            assert result.valid is not None


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_calls_of_all_sets_of_tools(connection: Connection, nats_server: LocalServer) -> None:
    async with serving(nats_server) as client:
        for start in range(0, len(TOOL_SETS), 8):
            await try_sets(client, TOOL_SETS[start : start + 8], wait_s=600.0)

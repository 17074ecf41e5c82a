"""Structured output and tools by OpenAI's client and sparkle-tiny: parsed, streamed, batched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from tests.gateway_at_work import REGION, gateway_at_work
from tests.worker_processes import TINY, worker_process

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module")]

MODEL = "sparkle-tiny"
QUESTION: ChatCompletionMessageParam = {"role": "user", "content": "Triage: 40 failed logins for root."}
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"verdict": {"enum": ["benign", "malicious"]}, "score": {"type": "integer", "maximum": 9}},
    "required": ["verdict", "score"],
    "additionalProperties": False,
}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "report", "description": "Reports.", "parameters": PARAMETERS, "strict": True},
}


class Verdict(BaseModel):
    """What a triage comes to."""

    verdict: Literal["benign", "malicious"]
    escalate: bool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(nats_binary: None) -> AsyncGenerator[AsyncOpenAI]:
    """OpenAI's client in front of sparkle-tiny."""
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="test"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        async with (
            worker_process(*TINY, "--region", REGION, "--nats", server.url),
            # its jobs wait until it is ready
            gateway_at_work(server.url, models=MODEL) as gateway,
            gateway.client() as opened,
        ):
            yield opened
        await connection.close()


async def test_answers_are_parsed(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.parse(
        model=MODEL, messages=[QUESTION], response_format=Verdict, max_tokens=200
    )
    assert isinstance(chat.choices[0].message.parsed, Verdict)
    response = await client.responses.parse(
        model=MODEL, input="Triage: 40 failed logins.", text_format=Verdict, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Verdict)


async def test_other_shapes_are_kept_to(client: AsyncOpenAI) -> None:
    shapes: dict[str, dict[str, object]] = {
        "choice": {"type": "choice", "choices": ["yes", "no"]},
        "regex": {"type": "regex", "pattern": "(yes|no)"},
        "grammar": {"type": "grammar", "grammar": 'start: "yes" | "no"'},
    }
    for name, shape in shapes.items():
        answer = await client.chat.completions.create(
            model=MODEL, messages=[QUESTION], max_tokens=20, extra_body={"response_format": shape}
        )
        assert answer.choices[0].message.content in ("yes", "no"), name


async def test_a_schema_that_cannot_be_served_is_refused(client: AsyncOpenAI) -> None:
    schema: dict[str, object] = {"type": "object", "not": {"required": ["a"]}}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model=MODEL,
            messages=[QUESTION],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema, "strict": True},
            },
        )
    assert refused.value.code == "unsupported_schema"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(
            model=MODEL,
            messages=[QUESTION],
            extra_body={"response_format": {"type": "regex", "pattern": "("}},
        )
    assert wrong.value.code == "invalid_grammar"


async def test_a_tool_is_called_and_its_outcome_is_taken(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[QUESTION], tools=[TOOL], tool_choice="required", max_tokens=300
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    require_report(call.function.arguments)
    outcome: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    turn: Any = choice.message.model_dump(exclude_none=True)
    after = await client.chat.completions.create(
        model=MODEL, messages=[QUESTION, turn, outcome], tools=[TOOL], tool_choice="none", max_tokens=10
    )
    assert after.choices[0].message.tool_calls is None


async def test_a_call_streams_up_to_the_whole(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL,
        messages=[QUESTION],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "report"}},
        parallel_tool_calls=False,
        max_tokens=300,
        temperature=0,
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["report"]
    require_report(calls[0].function.arguments)
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == calls[0].function.arguments
    whole = await client.chat.completions.create(
        model=MODEL,
        messages=[QUESTION],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "report"}},
        parallel_tool_calls=False,
        max_tokens=300,
        temperature=0,
    )
    again = whole.choices[0].message.tool_calls
    assert again is not None
    assert again[0].type == "function"
    assert again[0].function.arguments == calls[0].function.arguments


async def test_a_response_calls_its_tools(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=MODEL,
        input="Triage: 40 failed logins.",
        tools=[{"type": "function", "name": "report", "parameters": PARAMETERS, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=300,
        stream=True,
    )
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    response = events[-1].response
    call = response.output[-1]
    assert call.type == "function_call"
    require_report(call.arguments)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    after = await client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "Triage: 40 failed logins."},
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
        ],
        max_output_tokens=8,
    )
    assert after.output[-1].type == "message"


async def test_a_batch_keeps_to_shapes(client: AsyncOpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS, "strict": True}}
    body = {"messages": [QUESTION], "response_format": schema, "max_tokens": 200}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = await client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ("completed", "failed"):
        await asyncio.sleep(0.05)
        batch = await client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None, batch.errors
    output = json.loads((await client.files.content(batch.output_file_id)).text)
    require_report(output["response"]["body"]["choices"][0]["message"]["content"])


def require_report(text: str) -> None:
    """The text is what the tool takes."""
    report = json.loads(text)
    assert set(report) == {"verdict", "score"}
    assert report["verdict"] in ("benign", "malicious")
    assert report["score"] <= 9

"""Batch lines in the OpenAI form: what becomes a job, and what each bad line is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.producers.batch_lines import BadLine, BatchLine, answer_line, error_line, parse
from sparkle.producers.gateway.answer_form import Used
from sparkle.producers.gateway.chat_answer import ChatAnswer
from sparkle.schemas.answer import Alternative, FinishReason, Result, TokenLogprobs, Usage
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Thinking
from sparkle.schemas.shape import ChoiceShape, JsonSchemaShape
from sparkle.schemas.tools import NamedTool, Tool, ToolCall

CANARY = "canary-7f3a"


def line(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]},
    }
    return {**fields, **changes}


def body(**changes: object) -> dict[str, object]:
    return line(body={"messages": [{"role": "user", "content": CANARY}], **changes})


def called(arguments: str = "{}", content: object = None) -> dict[str, object]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def parsed(fields: object) -> BatchLine | BadLine:
    return parse(7, json.dumps(fields).encode())


def good(fields: object) -> BatchLine:
    found = parsed(fields)
    assert isinstance(found, BatchLine), found
    return found


def bad(fields: object) -> BadLine:
    found = parsed(fields)
    assert isinstance(found, BadLine)
    return found


def test_a_line_is_a_job() -> None:
    found = good(line())
    assert (found.number, found.custom_id, found.model) == (7, "a", "gpt-x")
    assert found.job.messages is not None
    assert (found.job.messages[0].role, found.job.messages[0].content) == ("user", "hi")
    assert found.job.max_tokens == 1024


def test_every_field_reaches_the_job() -> None:
    job = good(
        body(
            max_tokens=9, temperature=0.5, top_p=0.4, top_k=3, min_p=0.1, repetition_penalty=1.1,
            presence_penalty=0.2, frequency_penalty=0.3, seed=5, stop="END", thinking="low",
        )
    ).job  # fmt: skip
    sampling = job.sampling
    assert (job.max_tokens, job.thinking) == (9, Thinking.LOW)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.4, 3, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.1, 0.2)
    assert (sampling.frequency_penalty, sampling.seed, sampling.stop) == (0.3, 5, ["END"])


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({"max_completion_tokens": 5}, 5), ({"max_completion_tokens": 5, "max_tokens": 5}, 5)],
)
def test_both_names_of_the_answers_length_count(fields: dict[str, object], max_tokens: int) -> None:
    assert good(body(**fields)).job.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("effort", "thinking"),
    [
        *(("none", "off"), ("minimal", "low"), ("low", "low")),
        *(("medium", "medium"), ("high", "xhigh"), ("xhigh", "xhigh")),
    ],
)
def test_reasoning_effort_is_thinking(effort: str, thinking: str) -> None:
    assert good(body(reasoning_effort=effort)).job.thinking == thinking


def test_what_changes_no_answer_is_taken() -> None:
    ignored = body(user="u", metadata={"a": "b"}, n=1, stream=False, response_format={"type": "text"})
    assert good(ignored).model == "sparkle"
    # clients send null for what is not given
    assert good(body(temperature=None, tools=None, logprobs=None)).job.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the line is not JSON"),
        (b'{"custom_id": "a"', "the line is not JSON"),
        (b"\xff\xfe", "the line is not JSON"),
        (b"[" * 100_000, "the line is not JSON"),
        (b"[1]", "the line is no JSON object"),
    ],
)
def test_what_is_no_json_has_no_id(data: bytes, message: str) -> None:
    assert parse(3, data) == BadLine(3, None, "invalid_json", message)


@pytest.mark.parametrize("custom_id", [None, 5, "", "x" * 513, "\ud800"])
def test_a_line_without_a_usable_custom_id(custom_id: object) -> None:
    found = bad(line(custom_id=custom_id))
    assert found.custom_id is None
    assert found.message == "custom_id: missing or not a text of 1 to 512 characters"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (line(method="GET"), "method: must be POST"),
        (line(url="/v1/embeddings"), "url: must be /v1/chat/completions"),
        (line(body=[]), "body: missing or no object"),
        (line(extra=1), "extra: not supported; supported here: custom_id, method, url, body"),
        (body(logprobs=1), "body.logprobs: must be true or false"),
        (body(top_logprobs=1), "body.top_logprobs: needs logprobs to be true"),
        (body(logprobs=True, top_logprobs=21), "body.logprobs: Input should be less than or equal to 20"),
        (body(logit_bias={"1": 2}, audio={}), "body.audio, body.logit_bias: not supported"),
        (body(n=2), "body.n: must be 1"),
        (body(stream=True), "body.stream: must be false"),
        (body(temperature=3), "body.temperature: Input should be less than or equal to 2"),
        (body(max_tokens=0), "body.max_tokens: Input should be greater than or equal to 1"),
        (body(max_tokens=float("nan")), "body.max_tokens: Input should be a finite number"),
        (body(max_tokens=5, max_completion_tokens=6), "body.max_tokens: differs"),
        (body(reasoning_effort="most"), "body.reasoning_effort: must be one of none, minimal, low, medium"),
        (body(reasoning_effort="low", thinking="low"), "body.reasoning_effort: must be one of"),
        (body(model=5), "body.model: must be a text"),
        (body(tools=[{"type": "function"}]), "body.tools.0.name: Field required"),
        (body(tools={}), "body.tools: "),
        (body(tools=[{"type": "function", "function": {"name": "<x>"}}]), "body.tools.0.name: "),
        (body(tool_choice="required"), "body.message: tool_choice asks for a call but there are no tools"),
        (body(tool_choice=CANARY), "body.tool_choice: "),
        (body(response_format={"type": CANARY}), "body.response_format: type must be one of"),
        (body(response_format={"type": "json_schema", CANARY: {}}), "body.response_format.json_schema"),
        (
            line(body={"messages": [called(arguments=f'["{CANARY}"]')]}),
            "body.messages.0.tool_calls.0.arguments: ",
        ),
        (
            line(body={"messages": [called(arguments=CANARY)]}),
            "body.messages.0.tool_calls.0.function.arguments: must be a JSON object, as text",
        ),
        (line(body={}), "give exactly one of messages, prompt and prompt_tokens"),
        (line(body={"messages": []}), "body.messages: "),
        (line(body={"messages": [{"role": "boss", "content": CANARY}]}), "body.messages.0.role: "),
        (line(body={"messages": [{"role": "user", "content": CANARY, CANARY: 1}]}), "body.messages.0: has"),
        (line(body={"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "body.messages.0"),
        (line(body={"messages": [{"role": "user", "content": "\ud800"}]}), "body.messages.0.content"),
    ],
)
def test_a_bad_line_is_told_its_field_and_nothing_of_its_content(
    fields: dict[str, object], says: str
) -> None:
    found = bad(fields)
    assert (found.number, found.custom_id, found.code) == (7, "a", "invalid_line")
    assert says in found.message
    assert CANARY not in found.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_json_is_a_job_or_a_bad_line(value: object) -> None:
    for fields in (value, line(body=value), body(messages=value), body(stop=value), line(custom_id=value)):
        assert isinstance(parsed(fields), BatchLine | BadLine)


def result(**changes: object) -> Result:
    fields: dict[str, object] = {
        "job": "01890a5d-ac96-774b-bcce-b302099a8057",
        "attempt": 1,
        "worker": "w1",
        "text": "yes",
        "tokens": [1, 2],
        "finish_reason": FinishReason.STOP,
        "usage": Usage(
            prompt_tokens=5, cached_tokens=4, completion_tokens=2, queue_s=0, first_token_s=0, total_s=0
        ),
    }
    return Result.model_validate({**fields, **changes})


def test_an_answer_is_a_chat_completion() -> None:
    assert answer_line(good(line()), result(), created_s=99) == {
        "id": "batch_req_7",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "body": {
                "id": "chatcmpl-01890a5d-ac96-774b-bcce-b302099a8057",
                "object": "chat.completion",
                "created": 99,
                "model": "gpt-x",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "yes", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 2,
                    "total_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 4},
                },
            },
        },
        "error": None,
    }


def test_log_probabilities_are_asked_for_and_come_with_their_tokens() -> None:
    assert good(body(logprobs=True, top_logprobs=3)).job.sampling.logprobs == 3
    assert good(body(logprobs=True)).job.sampling.logprobs == 0
    assert good(body(logprobs=False)).job.sampling.logprobs is None
    told = [
        TokenLogprobs(logprob=-0.5, text="yes", top=[Alternative(token=1, logprob=-0.5, text="yes")]),
        TokenLogprobs(logprob=-0.25, text="<|im_end|>", octets=b"", top=[]),
    ]
    text = json.dumps(answer_line(good(line()), result(logprobs=told), created_s=99))
    logprobs = json.loads(text)["response"]["body"]["choices"][0]["logprobs"]
    assert [one["token"] for one in logprobs["content"]] == ["yes", "<|im_end|>"]
    assert [one["top_logprobs"] for one in logprobs["content"]] == [
        [{"token": "yes", "logprob": -0.5, "bytes": [121, 101, 115]}],
        [],
    ]


@pytest.mark.parametrize(
    "changes",
    [{}, {"reasoning": "why"}, {"text": "", "tool_calls": [ToolCall(id="c", name="f", arguments={"a": 1})]}],
    ids=["text", "thoughts", "calls"],
)
def test_an_answer_is_the_gateways_and_can_be_a_turn_of_another_line(changes: dict[str, object]) -> None:
    answer = result(**changes)
    written: Any = answer_line(good(line()), answer, created_s=99)["response"]
    form = ChatAnswer(answer.job, created_s=99, model="gpt-x", with_usage=False)
    of_gateway = form.whole([answer], Used.of([answer], reasoning_tokens=0))
    assert written["body"]["choices"] == of_gateway["choices"]
    message = written["body"]["choices"][0]["message"]
    assert message.get("reasoning_content") == changes.get("reasoning")
    job = good(body(messages=[{"role": "user", "content": "hi"}, message])).job
    assert job.messages is not None
    turn = job.messages[1]
    assert (turn.content, turn.reasoning) == (answer.text, changes.get("reasoning"))
    assert turn.tool_calls == changes.get("tool_calls")


def test_an_error_has_no_response() -> None:
    assert error_line(3, None, "invalid_json", "the line is not JSON") == {
        "id": "batch_req_3",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_json", "message": "the line is not JSON"},
    }


def test_openais_nested_forms_become_the_contracts() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    named = {"type": "function", "function": {"name": "f"}}
    schema = {"name": "n", "description": "d", "schema": {"type": "integer"}, "strict": True}
    turns = [
        {"role": "user", "content": "?"},
        called('{"b": 1, "a": null}'),
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    job = good(
        line(
            body={
                "messages": turns,
                "tools": [
                    {"type": "function", "function": function},
                    {"type": "function", "function": {"name": "g"}},
                ],
                "tool_choice": named,
                "parallel_tool_calls": False,
                "response_format": {"type": "json_schema", "json_schema": schema},
            }
        )
    ).job
    assert job.tools == [
        Tool(name="f", description="d", parameters={"type": "object"}, strict=True),
        # as OpenAI has it, unlike the contract
        Tool(name="g", strict=False),
    ]
    assert (job.tool_choice, job.parallel_tool_calls) == (NamedTool(name="f"), False)
    assert job.response_format == JsonSchemaShape(schema={"type": "integer"}, strict=True)
    assert job.messages is not None
    assert job.messages[1].content == ""
    assert job.messages[1].tool_calls == [ToolCall(id="c1", name="f", arguments={"b": 1, "a": None})]
    assert job.messages[2].tool_call_id == "c1"


def test_a_schema_that_does_not_say_so_is_not_strict() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    assert good(body(response_format=shape)).job.response_format == JsonSchemaShape(
        schema={"type": "integer"}, strict=False
    )
    assert good(body(response_format={"type": "text"})).job.response_format is None
    own = {"type": "choice", "choices": ["a"]}
    assert good(body(response_format=own)).job.response_format == ChoiceShape(choices=["a"])


def test_an_answers_calls_are_in_openais_form() -> None:
    result = Result(
        job=new_job_id(),
        attempt=1,
        worker="w",
        text="",
        tokens=[1],
        tool_calls=[ToolCall(id="call_1", name="größe", arguments={"a": "ü"})],
        valid=True,
        finish_reason=FinishReason.TOOL_CALLS,
        usage=Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0),
    )
    found: Any = answer_line(good(line()), result, created_s=1)
    choice = found["response"]["body"]["choices"][0]
    assert (choice["finish_reason"], choice["valid"]) == ("tool_calls", True)
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "größe", "arguments": '{"a": "ü"}'}}
        ],
        "valid": True,
    }

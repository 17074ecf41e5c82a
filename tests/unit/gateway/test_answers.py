"""Results and chunks to OpenAI's forms: tool calls, thinking, log probabilities, the order of events."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.chat_answer import ChatAnswer
from sparkle.producers.gateway.completion_answer import CompletionAnswer
from sparkle.producers.gateway.response_answer import ResponseObject
from sparkle.producers.gateway.response_events import ResponseAnswer
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.schemas.answer import (
    Alternative,
    Channel,
    Chunk,
    FinishReason,
    Result,
    TokenLogprobs,
    Usage,
)
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.tools import ToolCall, ToolCallDelta

JOB = new_job_id()
CALLS = [
    ToolCall(id="c0", name="block", arguments={"ip": "10.0.0.1"}),
    ToolCall(id="c1", name="läute", arguments={}),
]


def result(**fields: object) -> Result:
    usage = Usage(
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=6,
        drafted_tokens=5,
        accepted_tokens=3,
        queue_s=0,
        first_token_s=0,
        total_s=0,
    )
    given: dict[str, object] = {
        "job": JOB,
        "attempt": 1,
        "worker": "w",
        "text": "",
        "tokens": [1, 2],
        "finish_reason": FinishReason.STOP,
        "usage": usage,
    }
    return Result.model_validate({**given, **fields})


def chunk(text: str = "", channel: Channel = Channel.ANSWER, *calls: ToolCallDelta) -> Chunk:
    return Chunk(
        job=JOB,
        attempt=1,
        seq=0,
        first_index=0,
        tokens=[1],
        text=text,
        text_start=0,
        channel=channel,
        worker="w",
        tool_calls=list(calls),
    )


STREAM = [
    chunk("hm", Channel.REASONING),
    chunk("Look: "),
    chunk("", Channel.ANSWER, ToolCallDelta(index=0, id="c0", name="block")),
    chunk("", Channel.ANSWER, ToolCallDelta(index=0, arguments='{"ip": ')),
    chunk(
        "",
        Channel.ANSWER,
        ToolCallDelta(index=0, arguments='"10.0.0.1"}'),
        ToolCallDelta(index=1, id="c1", name="läute", arguments="{}"),
    ),
]
END = result(text="Look: ", reasoning="hm", tool_calls=CALLS, finish_reason=FinishReason.TOOL_CALLS)


def used(*results: Result, reasoning_tokens: int = 1) -> Used:
    return Used.of(results, reasoning_tokens=reasoning_tokens)


@pytest.fixture
def form() -> ChatAnswer:
    return ChatAnswer(JOB, created_s=7, model="m", with_usage=True)


def test_a_whole_chat_has_thinking_text_and_calls(form: ChatAnswer) -> None:
    fields = form.whole([END], used(END))
    answer = ChatCompletion.model_validate(fields)
    message = answer.choices[0].message
    assert (message.content, message.model_extra) == ("Look: ", {"reasoning_content": "hm"})
    assert message.tool_calls is not None
    assert [(call.id, call.type) for call in message.tool_calls] == [("c0", "function"), ("c1", "function")]
    arguments = [call.function.arguments for call in message.tool_calls if call.type == "function"]
    assert arguments == ['{"ip": "10.0.0.1"}', "{}"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert fields["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 2,
        },
    }


def test_where_the_shape_was_not_enforced_a_choice_says_whether_it_holds(form: ChatAnswer) -> None:
    for valid in (True, False):
        (last,) = form.last(0, result(valid=valid))
        for fields in (last, form.whole([result(valid=valid)], used(END))):
            assert isinstance(fields["choices"], list)
            assert fields["choices"][0]["valid"] is valid
    assert "valid" not in json.dumps([*form.last(0, END), form.whole([END], used(END))])


def test_an_answer_of_calls_alone_has_no_content(form: ChatAnswer) -> None:
    end = result(tool_calls=CALLS)
    assert ChatCompletion.model_validate(form.whole([end], used(end))).choices[0].message.content is None


def test_a_streamed_chat_joins_up_to_the_whole(form: ChatAnswer) -> None:
    pieces = [
        ChatCompletionChunk.model_validate(fields) for part in STREAM for fields in form.deltas(0, part)
    ]
    deltas = [piece.choices[0].delta for piece in pieces]
    assert "".join(delta.content or "" for delta in deltas) == END.text
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "hm"
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    # id and name come once, first
    assert [(call.index, call.id) for call in calls if call.id is not None] == [(0, "c0"), (1, "c1")]
    for index, call in enumerate(CALLS):
        own = [one.function for one in calls if one.index == index and one.function is not None]
        assert own[0].name == call.name
        assert all(function.name is None for function in own[1:])
        assert json.loads("".join(function.arguments or "" for function in own)) == call.arguments


def test_usage_is_told_last_and_is_null_before(form: ChatAnswer) -> None:
    (last,) = form.last(0, END)
    (told,) = form.after([END, END], used(END, END))
    assert last["usage"] is None
    assert (told["choices"], ChatCompletionChunk.model_validate(told).usage) != ([], None)
    assert isinstance(told["usage"], dict)
    assert told["usage"]["prompt_tokens"] == 20
    quiet = ChatAnswer(JOB, created_s=7, model="m", with_usage=False)
    assert list(quiet.after([END], used(END))) == []


def test_log_probabilities_are_one_a_token(form: ChatAnswer) -> None:
    told = [TokenLogprobs(logprob=-0.5, text="a", top=[Alternative(token=9, logprob=-0.1)])] * 2
    answer = ChatCompletion.model_validate(form.whole([result(logprobs=told)], used(END)))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(one.token, one.bytes) for one in logprobs.content] == [("a", [97])] * 2
    likely = [one.top_logprobs[0] for one in logprobs.content]
    assert [(one.token, one.logprob) for one in likely] == [("token_id:9", -0.1)] * 2


def test_each_choice_of_a_streamed_completion_counts_its_own_characters() -> None:
    form = CompletionAnswer(JOB, created_s=7, model="m", with_usage=True)
    told = [TokenLogprobs(logprob=-0.5, text="é", top=[])]
    offsets: list[tuple[int, object]] = []
    for index, number in ((0, 0), (1, 0), (0, 1), (0, 2), (1, 1)):
        piece = chunk("é").model_copy(update={"first_index": number, "logprobs": told})
        (fields,) = form.deltas(index, piece)
        choice = json.loads(json.dumps(fields))["choices"][0]
        offsets.append((choice["index"], choice["logprobs"]["text_offset"]))
    assert offsets == [(0, [0]), (1, [0]), (0, [1]), (0, [2]), (1, [1])]


def response_form() -> ResponseAnswer:
    asked = ResponseRequest.model_validate(
        {"input": "secret", "tools": [{"type": "function", "name": "block"}]}
    )
    return ResponseAnswer(ResponseObject(asked, JOB, created_s=7, model="m", max_tokens=99))


def events() -> list[Fields]:
    form = response_form()
    told = [*form.first(0)]
    for part in STREAM:
        told += form.deltas(0, part)
    return [*told, *form.last(0, END), *form.after([END], used(END))]


def test_a_responses_items_begin_grow_and_end_in_turn() -> None:
    told = events()
    assert [fields["sequence_number"] for fields in told] == list(range(len(told)))
    kinds = [str(fields["type"]).removeprefix("response.") for fields in told]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_the_items_that_were_streamed_are_those_of_the_whole() -> None:
    told = events()
    done = [fields["item"] for fields in told if fields["type"] == "response.output_item.done"]
    whole = told[-1]["response"]
    assert isinstance(whole, dict)
    assert whole["output"] == done
    places = [fields["output_index"] for fields in told if fields["type"] == "response.output_item.added"]
    assert places == [0, 1, 2, 3]
    response = Response.model_validate(whole)
    assert (response.output_text, response.status) == ("Look: ", "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens_details.reasoning_tokens) == (10, 1)


def test_a_response_does_not_repeat_its_input() -> None:
    assert "secret" not in json.dumps(events())


@pytest.mark.parametrize(
    ("reasoning", "texts", "own"),
    [("hm", ["hm", "</think>", "y", "es"], ["y", "es"]), ("hm", ["hm"], []), ("", ["y", "es"], ["y", "es"])],
)
def test_a_responses_log_probabilities_are_those_behind_its_thoughts(
    reasoning: str, texts: list[str], own: list[str]
) -> None:
    told = [TokenLogprobs(logprob=-0.5, text=text, top=[]) for text in texts]
    ended = result(reasoning=reasoning, text="yes", tokens=list(range(len(texts))), logprobs=told)
    response = Response.model_validate(response_form().whole([ended], used(ended)))
    message = response.output[-1]
    assert isinstance(message, ResponseOutputMessage)
    part = message.content[0]
    assert isinstance(part, ResponseOutputText)
    assert [one.token for one in part.logprobs or ()] == own


def told(text: str, token: str, channel: Channel = Channel.ANSWER) -> Chunk:
    """A piece of one token with its log probability."""
    entry = TokenLogprobs(logprob=-0.5, text=token, top=[])
    return chunk(text, channel).model_copy(update={"logprobs": [entry]})


def spoken(events: list[Fields], kind: str) -> list[list[object]]:
    """The tokens whose log probabilities each of a response's events of this kind tells."""
    told = [fields["logprobs"] for fields in events if fields["type"] == f"response.output_text.{kind}"]
    return [[entry["token"] for entry in entries] for entries in json.loads(json.dumps(told))]


def test_a_streamed_response_keeps_log_probabilities_until_their_text_is_there() -> None:
    form = response_form()
    # a thought, two halves of a character, a call
    streamed = [told("hm", "hm", Channel.REASONING), told("", "\\xc3"), told("é", "\\xa9"), told("s", "s")]
    call = chunk("", Channel.ANSWER, ToolCallDelta(index=0, id="call_1", name="block"))
    streamed += [told("", "<tool_call>"), call.model_copy(update={"logprobs": None}), told("t", "t")]
    events = [fields for part in streamed for fields in form.deltas(0, part)] + [*form.last(0, END)]

    assert spoken(events, "delta") == [["\\xc3", "\\xa9"], ["s"], ["t"]]
    assert spoken(events, "done") == [["\\xc3", "\\xa9", "s"], ["t"]]


@pytest.mark.parametrize("texts", [["yes", ""], [""]], ids=["answer", "empty"])
def test_a_streamed_response_tells_its_end_token_as_a_chat_does(form: ChatAnswer, texts: list[str]) -> None:
    tokens = [text or "<|im_end|>" for text in texts]
    parts = [told(text, token) for text, token in zip(texts, tokens, strict=True)]
    chat = [fields["choices"] for part in parts for fields in form.deltas(0, part)]
    in_chat = [
        [entry["token"] for entry in one[0]["logprobs"]["content"]] for one in json.loads(json.dumps(chat))
    ]
    streamed = response_form()
    events = [fields for part in parts for fields in streamed.deltas(0, part)] + [*streamed.last(0, END)]
    assert in_chat == spoken(events, "delta") == [[token] for token in tokens]
    assert spoken(events, "done") == [tokens]


def test_an_empty_answer_has_an_empty_message() -> None:
    form = response_form()
    list(form.first(0))
    kinds = [fields["type"] for fields in form.last(0, result())]
    assert kinds[0] == "response.output_item.added"
    response = Response.model_validate(form.whole([result()], used(END)))
    assert [item.type for item in response.output] == ["message"]


def test_a_broken_response_says_so() -> None:
    form = response_form()
    list(form.first(0))
    (failed,) = form.failed({"code": "engine_error", "message": "why"})
    assert failed["type"] == "response.failed"
    assert isinstance(failed["response"], dict)
    assert failed["response"]["error"] == {"code": "engine_error", "message": "why"}

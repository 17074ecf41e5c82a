"""OpenAI's own client against the gateway, a real queue and a worker with a stand-in engine."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from sparkle.queue.connection import Connection, Envelope
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job
from tests.conftest import Eventually
from tests.engine_stand_in import text_of
from tests.gateway_at_work import GatewayAtWork

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is MFA?"}]


def written(answer_id: str, first: int, end: int) -> str:
    """What the stand-in writes for this answer, from one token up to another."""
    job = answer_id.split("-", 1)[1]
    return "".join(text_of(job, index) for index in range(first, end))


async def test_a_chat_is_answered(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="stand-in", messages=QUESTION, max_tokens=5)
    (choice,) = answer.choices
    assert choice.message.content == written(answer.id, 0, 5)
    assert (choice.message.role, choice.message.refusal, choice.message.tool_calls) == (
        "assistant",
        None,
        None,
    )
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (answer.object, answer.model) == ("chat.completion", "stand-in")
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5)


async def test_a_stream_has_role_deltas_finish_reason_and_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="stand-in",
        messages=QUESTION,
        max_completion_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = [piece async for piece in stream]
    first, *middle, last, used = pieces
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    text = "".join(piece.choices[0].delta.content or "" for piece in middle)
    assert text == written(first.id, 0, 7)
    assert all(piece.choices[0].finish_reason is None for piece in (first, *middle))
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("length", None)
    assert used.choices == []
    assert used.usage is not None
    assert used.usage.completion_tokens == 7
    assert {piece.id for piece in pieces} == {first.id}
    assert all(piece.usage is None for piece in (first, *middle, last))


async def test_without_being_asked_a_stream_tells_no_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="stand-in", messages=QUESTION, max_tokens=2, stream=True
    )
    pieces = [piece async for piece in stream]
    assert pieces[-1].choices[0].finish_reason == "length"
    assert all("usage" not in piece.model_fields_set for piece in pieces)


async def test_several_choices_come_side_by_side(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="stand-in", messages=QUESTION, max_tokens=4, n=3, stream=True
    )
    texts = {0: "", 1: "", 2: ""}
    first_id = ""
    begun: set[int] = set()
    ended: list[int] = []
    async for piece in stream:
        (choice,) = piece.choices
        assert (choice.delta.role == "assistant") is (choice.index not in begun)
        begun.add(choice.index)
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason is not None:
            ended.append(choice.index)
        first_id = piece.id
    assert sorted(ended) == [0, 1, 2]
    assert texts[0] == written(first_id, 0, 4)
    assert len(set(texts.values())) == 3
    whole = await client.chat.completions.create(model="stand-in", messages=QUESTION, max_tokens=4, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12


async def test_log_probabilities_have_their_tokens_texts(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="stand-in", messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=1
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    job = answer.id.removeprefix("chatcmpl-")
    texts = [text_of(job, index) for index in range(3)]
    assert [(one.token, one.logprob) for one in told.content] == [(text, -1.0) for text in texts]
    assert [one.bytes for one in told.content] == [list(text.encode()) for text in texts]
    likely = [one.top_logprobs[0] for one in told.content]
    assert [(one.token, one.bytes) for one in likely] == [("\\xe2\\x80", [0xE2, 0x80])] * 3


async def test_log_probabilities_of_a_streamed_completion_say_where_tokens_begin(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="stand-in", prompt="go on", max_tokens=4, logprobs=1, stream=True
    )
    choices = [piece.choices[0] async for piece in stream]
    text = "".join(choice.text for choice in choices)
    told = [choice.logprobs for choice in choices if choice.logprobs is not None]
    tokens = [token for one in told for token in one.tokens or ()]
    offsets = [offset for one in told for offset in one.text_offset or ()]
    ends = [*offsets[1:], len(text)]
    assert len(tokens) == 4
    assert [text[start:end] for start, end in zip(offsets, ends, strict=True)] == tokens


async def test_texts_and_tokens_can_be_gone_on_from(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="stand-in", prompt=["one two", "three"], max_tokens=3, n=2, logprobs=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == written(answer.id, 0, 3)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs == [-1.0] * 3
    assert "".join(answer.choices[0].logprobs.tokens or ()) == answer.choices[0].text
    assert answer.usage is not None
    # each choice reads its own prompt
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 * 2 + 2 * 1, 12)
    tokens = await client.completions.create(model="stand-in", prompt=[1, 2, 3], max_tokens=2)
    assert tokens.choices[0].text == written(tokens.id, 0, 2)


@pytest.mark.parametrize("trace", [f"00-{'4b' * 16}-{'00f0' * 4}-01", None, "a word of the sender's own"])
async def test_jobs_carry_the_trace_of_their_request(
    client: AsyncOpenAI, connection: Connection, eventually: Eventually, trace: str | None
) -> None:
    carried: list[tuple[str | None, str | None]] = []

    async def note(job: Envelope) -> None:
        carried.append((job.headers.get("traceparent"), decode(job.payload, Job).traceparent))

    heard = await connection.subscribe(subjects.all_jobs(), note)
    # the server has heard of it
    assert await connection.echo(5.0)
    headers = {} if trace is None else {"traceparent": trace}
    await client.completions.create(model="stand-in", prompt="x", max_tokens=1, n=2, extra_headers=headers)
    await eventually(lambda: len(carried) == 2)
    await heard.stop()
    told = trace if trace is not None and trace.startswith("00-") else None
    assert carried == [(told, told)] * 2


async def test_a_completion_streams(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(model="stand-in", prompt="go on", max_tokens=4, stream=True)
    pieces = [piece async for piece in stream]
    assert "".join(piece.choices[0].text for piece in pieces) == written(pieces[0].id, 0, 4)
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == "length"


async def test_what_was_thought_stands_beside_the_answer(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="stand-in", prompt="think=2", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    pieces = [piece async for piece in stream]
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens_details is not None
    assert pieces[-1].usage.completion_tokens_details.reasoning_tokens == 2


async def test_a_response_is_answered(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="stand-in", input="What is MFA?", instructions="Be short.", max_output_tokens=4
    )
    assert answer.output_text == written(answer.id.replace("_", "-"), 0, 4)
    assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert (answer.instructions, answer.max_output_tokens, answer.error) == ("Be short.", 4, None)
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.output_tokens_details.reasoning_tokens) == (4, 0)


async def test_a_response_streams_its_items(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="stand-in", input="What is MFA?", max_output_tokens=6) as stream:
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert deltas == final.output_text == written(final.id.replace("_", "-"), 0, 6)


async def test_models_are_those_that_workers_serve(client: AsyncOpenAI, gateway: GatewayAtWork) -> None:
    assert [model.id async for model in client.models.list()] == ["stand-in"]
    assert (await client.models.retrieve("stand-in")).owned_by == "sparkle"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")
    assert (
        gateway.metric("sparkle_gateway_requests_total", endpoint="GET /v1/models/{id}", status="404") == 1.0
    )


async def test_a_model_that_is_not_served_is_refused_by_its_name(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="`gpt-9` is not served for this key; served: stand-in"):
        await client.chat.completions.create(model="gpt-9", messages=QUESTION)


async def test_a_deadline_is_a_504_before_the_first_piece_and_an_error_after(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        await client.completions.create(
            model="stand-in", prompt="silent=1", stream=True, extra_body={"deadline_s": 0.3}
        )
    assert refused.value.status_code == 504
    stream = await client.completions.create(
        model="stand-in",
        prompt="pace_ms=20",
        max_tokens=1000,
        stream=True,
        extra_body={"deadline_s": 3},
    )
    texts: list[str] = []

    async def read() -> None:
        async for piece in stream:
            texts.append(piece.choices[0].text)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(openai.APIError, match="deadline_exceeded"):
        await read()
    assert texts


async def test_a_job_that_fails_has_the_failures_status(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="stand-in", prompt="fail=too_long")
    assert (refused.value.code, refused.value.type) == ("context_length_exceeded", "invalid_request_error")
    with pytest.raises(openai.InternalServerError) as broken:
        await client.completions.create(model="stand-in", prompt="fail=engine_error")
    assert (broken.value.status_code, broken.value.type) == (500, "server_error")


async def test_a_wrong_field_is_a_400_that_names_it(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="logit_bias: is not supported") as refused:
        await client.chat.completions.create(model="stand-in", messages=QUESTION, logit_bias={"1": 5})
    assert (refused.value.param, refused.value.code) == ("logit_bias", "unsupported_field")


async def test_the_synchronous_client_works_as_well(client: AsyncOpenAI, gateway: GatewayAtWork) -> None:
    def ask() -> tuple[str, str]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as opened:
            pieces: list[ChatCompletionChunk] = list(
                opened.chat.completions.create(model="stand-in", messages=QUESTION, max_tokens=3, stream=True)
            )
        return pieces[0].id, "".join(piece.choices[0].delta.content or "" for piece in pieces)

    answer_id, text = await asyncio.to_thread(ask)
    assert text == written(answer_id, 0, 3)


async def test_a_follow_up_goes_to_its_conversations_home(client: AsyncOpenAI) -> None:
    for _ in range(2):
        answer = await client.completions.create(
            model="stand-in", prompt="one", max_tokens=2, extra_body={"conversation": "alert-17"}
        )
        assert answer.choices[0].text == written(answer.id, 0, 2)

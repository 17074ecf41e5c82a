"""OpenAI's requests to jobs: what each field becomes, and what is refused by its name."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkle.producers.gateway.asked import Defaults, Order
from sparkle.producers.gateway.batch_endpoints import BatchRequest
from sparkle.producers.gateway.chat_request import ChatRequest, chat_orders
from sparkle.producers.gateway.completion_request import CompletionRequest, completion_orders
from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.response_request import ResponseRequest, response_order
from sparkle.producers.metering.bound import most_tokens
from sparkle.producers.openai_forms import EFFORTS
from sparkle.schemas.job import Sampling, Thinking, Turn
from sparkle.schemas.priority import PriorityClass, ServiceRates

DEFAULTS = Defaults(
    tenant="acme", region="eu", max_tokens=512, deadline_s=60.0, max_choices=4, rates=ServiceRates()
)
QUESTION = [{"role": "user", "content": "x"}]


def chat(**fields: object) -> tuple[Order, ...]:
    return chat_orders(ChatRequest.model_validate({"messages": QUESTION, **fields}), DEFAULTS)


def completion(**fields: object) -> tuple[Order, ...]:
    return completion_orders(CompletionRequest.model_validate(fields), DEFAULTS)


def response(**fields: object) -> Order:
    return response_order(ResponseRequest.model_validate({"input": "x", **fields}), DEFAULTS)


def refused(ask: object, **fields: object) -> ApiFault:
    """The fault of a request."""
    assert callable(ask)
    with pytest.raises(ApiFault) as fault:
        ask(**fields)
    return fault.value


def test_a_plain_chat_takes_the_defaults() -> None:
    (order,) = chat()
    job = order.job
    assert (job.tenant, job.region, job.max_tokens, job.thinking) == ("acme", "eu", 512, Thinking.OFF)
    assert job.sampling == Sampling()
    assert job.messages is not None
    assert [(turn.role, turn.content) for turn in job.messages] == [("user", "x")]
    assert job.deadline_ms is not None
    assert 50 < job.deadline_ms / 1000 - time.time() <= 60
    # a bound: what the template writes at most around a turn and a letter, and the answer
    assert order.most_tokens == most_tokens(job) == 256 + 32 + 1 + 512


def test_every_field_of_sampling_arrives() -> None:
    given: dict[str, object] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 9,
        "stop": ["a", "b"],
        "ignore_eos": True,
    }
    (order,) = chat(**given, logprobs=True, top_logprobs=5)
    assert order.job.sampling == Sampling.model_validate({**given, "logprobs": 5})
    assert chat(stop="end")[0].job.sampling.stop == ["end"]
    assert chat(logprobs=True)[0].job.sampling.logprobs == 0
    assert chat(logprobs=False)[0].job.sampling.logprobs is None


def test_what_guidellm_sends_is_taken() -> None:
    # version 0.8.1, told 40 output tokens
    parts = [{"type": "text", "text": "What is MFA?"}]
    (order,) = chat(
        model="sparkle-tiny",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        max_completion_tokens=40,
        ignore_eos=True,
        messages=[{"role": "user", "content": parts}],
    )
    assert (order.job.max_tokens, order.job.sampling.ignore_eos) == (40, True)
    assert order.job.messages == [Turn(role="user", content="What is MFA?")]


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity", '[{"b": NaN}]'])
def test_metadata_hold_what_an_answer_can_say_again(number: str) -> None:
    metadata = f'"metadata": {{"run": 7, "a": {number}}}'
    for model, needed in (
        (ChatRequest, '"messages": [{"role": "user", "content": "x"}]'),
        (ResponseRequest, '"input": "x"'),
        (BatchRequest, '"input_file_id": "f", "endpoint": "/v1/responses", "completion_window": "24h"'),
    ):
        with pytest.raises(ValidationError, match=r"metadata\n.* not finite"):
            model.model_validate_json(f"{{{needed}, {metadata}}}")
        model.model_validate_json(f"{{{needed}, {metadata}}}".replace(number, "[0.5, 9]"))


def test_null_is_the_same_as_left_out() -> None:
    nulls = dict.fromkeys(set(ChatRequest.model_fields) - {"messages"})
    (order,) = chat(**nulls)
    (plain,) = chat()
    same = {"id": plain.job.id, "deadline_ms": plain.job.deadline_ms}
    assert order.job.model_copy(update=same) == plain.job


@pytest.mark.parametrize(("effort", "thinking"), EFFORTS.items())
def test_efforts_are_the_models_own_three(effort: str, thinking: str) -> None:
    assert chat(reasoning_effort=effort)[0].job.thinking == thinking
    assert response(reasoning={"effort": effort}).job.thinking == thinking


def test_several_choices_have_seeds_of_their_own() -> None:
    jobs = [order.job for order in chat(n=3, seed=2**63 - 2)]
    assert [job.sampling.seed for job in jobs] == [2**63 - 2, 2**63 - 1, 0]
    assert len({job.id for job in jobs}) == 3
    assert refused(chat, n=5).param == "n"
    assert refused(chat, n=0).param == "n"


def test_one_limit_of_tokens_is_given() -> None:
    assert chat(max_tokens=5)[0].job.max_tokens == 5
    assert chat(max_completion_tokens=6)[0].job.max_tokens == 6
    assert chat(max_completion_tokens=6, max_tokens=6)[0].job.max_tokens == 6
    assert refused(chat, max_completion_tokens=6, max_tokens=5).param == "max_tokens"
    assert refused(chat, max_tokens=0).param == "max_tokens"


def test_a_priority_can_only_be_later_than_the_jobs_own() -> None:
    assert chat(max_tokens=10)[0].priority is PriorityClass.P0
    assert chat(max_tokens=10, priority="p3")[0].priority is PriorityClass.P3
    assert chat(max_tokens=50_000, priority="p0")[0].priority is PriorityClass.P4


def test_conversation_and_deadline_arrive() -> None:
    job = chat(conversation="alert-17", deadline_s=5)[0].job
    assert job.conversation == "alert-17"
    assert job.deadline_ms is not None
    assert job.deadline_ms / 1000 - time.time() <= 5


def test_turns_in_front_of_system_and_developer_become_one() -> None:
    turns = [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        *QUESTION,
        {"role": "assistant", "content": "d", "reasoning_content": "e"},
        {"role": "user", "content": "f"},
    ]
    job = chat(messages=turns)[0].job
    assert job.messages is not None
    assert [(turn.role, turn.content, turn.reasoning) for turn in job.messages] == [
        ("system", "a\n\nbc", None),
        ("user", "x", None),
        ("assistant", "d", "e"),
        ("user", "f", None),
    ]
    late = [*QUESTION, {"role": "system", "content": "late"}]
    assert "a system turn can only be the first" in refused(chat, messages=late).message


def test_prompts_are_texts_or_tokens() -> None:
    assert completion(prompt="a")[0].job.prompt == "a"
    assert [order.job.prompt for order in completion(prompt=["a", "b"], n=2)] == ["a", "a", "b", "b"]
    assert completion(prompt=[1, 2])[0].job.prompt_tokens == [1, 2]
    assert [order.job.prompt_tokens for order in completion(prompt=[[1], [2, 3]])] == [[1], [2, 3]]
    assert refused(completion, prompt=["a"] * 5).param == "prompt"
    assert refused(completion, prompt="a", best_of=2).param == "best_of"
    assert completion(prompt="a", logprobs=3)[0].job.sampling.logprobs == 3


def test_items_become_turns() -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]
    job = response(input=items, instructions="first", max_output_tokens=9, top_logprobs=2).job
    assert job.messages is not None
    assert [(turn.role, turn.content, turn.reasoning) for turn in job.messages] == [
        ("system", "first\n\na", None),
        ("user", "b", None),
        ("assistant", "d", "c"),
        ("user", "e", None),
    ]
    assert (job.max_tokens, job.sampling.logprobs) == (9, 2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"temperature": 2.5}, "temperature"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_chat_is_refused_by_the_fields_name(fields: dict[str, object], param: str) -> None:
    try:
        fault = refused(chat, **fields)
    except ValueError as error:
        # the form itself refuses it: the endpoint makes the same fault of it
        assert param in str(error)  # noqa: PT017
    else:
        assert (fault.status, fault.param) == (400, param)


@given(st.text(max_size=40), st.sampled_from(["user", "assistant", "system", "developer"]))
def test_any_text_arrives_as_it_is(text: str, role: str) -> None:
    asked = ChatRequest.model_validate_json(
        json.dumps({"messages": [{"role": role, "content": text}, {"role": "user", "content": text}]})
    )
    job = chat_orders(asked, DEFAULTS)[0].job
    assert job.messages is not None
    assert [turn.content for turn in job.messages] == [text, text]

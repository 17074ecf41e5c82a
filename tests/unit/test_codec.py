"""The codec: what goes in comes out; anything else is a typed error without the sender's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import FailureCode, InvalidMessage, MessageTooLarge, UnsupportedVersion
from sparkle.schemas.answer import (
    Alternative,
    Channel,
    Chunk,
    Failure,
    FinishReason,
    Result,
    TokenLogprobs,
    Usage,
)
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import MAX_LOGPROBS_TOKENS, Job, Sampling, Turn
from sparkle.schemas.message import VERSION
from sparkle.schemas.packing import pack, unpack

CANARY = "canary-7f3a"
JOB_ID = new_job_id()

# without surrogates, which are no text
texts = st.text(st.characters(codec="utf-8"), max_size=50)
tokens = st.lists(st.integers(0, 2**20 - 1), max_size=20)
jobs = st.builds(
    Job,
    messages=st.lists(
        st.builds(Turn, role=st.sampled_from(["user", "assistant"]), content=texts), max_size=4
    ).map(lambda turns: [*turns, Turn(role="user", content="?")]),
    max_tokens=st.integers(1, 262_144),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        top_p=st.floats(0.01, 1),
        seed=st.none() | st.integers(0, 2**63 - 1),
        stop=st.lists(texts.filter(bool), max_size=16),
    ),
    deadline_ms=st.none() | st.integers(0, 2**53 - 1),
)
chunks = st.builds(
    Chunk,
    job=st.just(JOB_ID),
    attempt=st.integers(1, 9),
    seq=st.integers(0, 2**40),
    first_index=st.integers(0, 262_144),
    tokens=tokens,
    text=texts,
    text_start=st.integers(0, 2**30),
    channel=st.sampled_from(Channel),
    worker=st.just("w-1"),
)
failures = st.builds(
    Failure,
    job=st.just(JOB_ID),
    code=st.sampled_from(FailureCode),
    message=texts,
    retryable=st.booleans(),
)
results = st.builds(
    Result,
    job=st.just(JOB_ID),
    attempt=st.integers(1, 9),
    worker=st.just("w-1"),
    text=texts,
    reasoning=texts,
    tokens=tokens,
    finish_reason=st.sampled_from(FinishReason),
    usage=st.just(Usage(prompt_tokens=1, completion_tokens=2, queue_s=0.5, first_token_s=0.25, total_s=1.0)),
)


@given(jobs | chunks | failures | results)
def test_a_message_comes_back_as_it_went(message: Job | Chunk | Failure | Result) -> None:
    assert decode(encode(message), Job, Chunk, Failure, Result) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_no_message(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(data, Job)


structures = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Job.model_fields, "extra"]), structures))
def test_random_fields_make_a_job_or_a_typed_error(fields: dict[str, Any]) -> None:
    try:
        job = decode(pack({**fields, "kind": "job"}), Job)
    except (InvalidMessage, UnsupportedVersion):
        return
    assert decode(encode(job), Job) == job


def a_chat(*, tools: object = None, tool_choice: object = "auto", **turn: object) -> dict[str, object]:
    """The changes that make a job of one turn."""
    turns = [{"role": "user", "content": CANARY, **turn}]
    return {"prompt": None, "messages": turns, "tools": tools, "tool_choice": tool_choice}


def a_job(**changes: object) -> bytes:
    """A valid job's bytes with some fields changed."""
    fields = {"v": VERSION, "kind": "job", "id": JOB_ID, "prompt": "hello", "max_tokens": 4}
    return pack({**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": CANARY}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 262_145}, "max_tokens"),
        ({"id": CANARY}, "id"),
        ({"tenant": f"{CANARY}.>"}, "tenant"),
        ({"thinking": CANARY}, "thinking"),
        ({CANARY: 1}, "message"),
        ({"sampling": {CANARY: 1}}, "sampling"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
        ({"sampling": {"stop": [CANARY * 100]}}, "sampling.stop.0"),
        ({"prompt": None, "messages": [{"role": CANARY, "content": CANARY}]}, "messages.0.role"),
        (
            {"prompt": None, "messages": [{"role": "user", "content": [{"type": CANARY}]}]},
            "messages.0.content",
        ),
        ({"messages": [{"role": "user", "content": CANARY}]}, "exactly one of"),
        ({"prompt": None}, "exactly one of"),
        (a_chat(tools=[{"name": "f", "parameters": [CANARY]}]), "tools.0.parameters"),
        ({"response_format": {"type": "choice", "choices": []}}, "response_format.choice.choices"),
        ({"response_format": {"type": CANARY}}, "response_format: type must be one of json_schema"),
        ({"response_format": {"schema": CANARY}}, "response_format: type must be one of"),
        ({"response_format": CANARY}, "response_format: "),
        (
            {"response_format": {"type": "json_schema", "schema": CANARY}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "regex", CANARY: 1}}, "response_format.regex.pattern"),
        ({"tools": [{"name": CANARY}]}, "tools need messages"),
        (a_chat(tools=[]), "tools: "),
        (a_chat(tools=[{"name": f"<{CANARY}>"}]), "tools.0.name"),
        (a_chat(tools=[{"name": CANARY}, {"name": CANARY}]), "tools: two have the same name"),
        (a_chat(tools=[{"name": "f"}], tool_choice={"name": CANARY}), "tool_choice names none"),
        ({"tool_choice": "required"}, "tool_choice asks for a call"),
        ({"tool_choice": CANARY}, "tool_choice"),
        (a_chat(role="tool"), "tool_call_id is needed"),
        (a_chat(tool_call_id=CANARY), "tool_call_id is needed"),
        (a_chat(tool_calls=[{"id": CANARY, "name": "f", "arguments": {"a": 1}}]), "for assistant turns"),
        (a_chat(role="tool", tool_call_id=CANARY), "user turn"),
        ({"thinking": "low"}, "thinking needs messages"),
        ({"prompt": None, "messages": [{"role": "system", "content": CANARY}]}, "user turn"),
        ({"kind": CANARY}, "kind"),
        ({"v": CANARY}, "v"),
        ({"sampling": {"logprobs": 1}, "max_tokens": 9000}, "8192"),
        (
            {"sampling": {"ignore_eos": True}, "response_format": {"type": "json_object"}},
            "message: ignore_eos: an answer in a shape, or with tools",
        ),
        (a_chat(tools=[{"name": "f"}]) | {"sampling": {"ignore_eos": True}}, "ignore_eos: an answer"),
    ],
)
def test_a_bad_field_is_named_and_its_value_is_not(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        decode(a_job(**changes), Job)
    assert named in str(caught.value)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_media_parts_are_refused_until_they_are_served() -> None:
    part = {"type": "image", "ref": CANARY}
    with pytest.raises(InvalidMessage, match=r"messages\.0: image and video parts are reserved") as caught:
        decode(a_job(prompt=None, messages=[{"role": "user", "content": [part]}]), Job)
    assert CANARY not in str(caught.value)


def test_a_newer_minor_version_may_have_fields_we_do_not_know() -> None:
    turn = {"role": "user", "content": "hi", "mood": "good"}
    job = decode(a_job(v="1.7", prompt=None, messages=[turn], colour="red"), Job)
    assert job.messages == [Turn(role="user", content="hi")]


def test_our_own_version_may_not() -> None:
    with pytest.raises(InvalidMessage, match="not in the contract"):
        decode(a_job(colour="red"), Job)


@pytest.mark.parametrize("version", ["0.9", "2.0", "17.3"])
def test_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"speaks 1"):
        decode(a_job(v=version), Job)


def test_sizes_are_checked_both_ways() -> None:
    job = Job(prompt="x" * 1000)
    with pytest.raises(MessageTooLarge, match=r"at most 500 fit"):
        encode(job, limit_bytes=500)
    with pytest.raises(MessageTooLarge, match=r"at most 500 are read"):
        decode(encode(job), Job, limit_bytes=500)


LONGEST_TOKEN_BYTES = 128
"""Of the model's vocabulary."""


def test_the_most_log_probabilities_fit_without_their_texts() -> None:
    top = [Alternative(token=2**20 - 1, logprob=-1.5)] * 20
    most = Result(
        job=JOB_ID,
        attempt=1,
        worker="w",
        text="x" * LONGEST_TOKEN_BYTES * MAX_LOGPROBS_TOKENS,
        tokens=[2**20 - 1] * MAX_LOGPROBS_TOKENS,
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0),
        logprobs=[TokenLogprobs(logprob=-1.5, top=top)] * MAX_LOGPROBS_TOKENS,
    )
    data = encode(most)
    # it is not refused for the number of its values either
    assert unpack(data)["attempt"] == 1


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    with pytest.raises(InvalidMessage):
        decode(b"\x91" * 100_000 + b"\xc0", Job)


def test_half_a_surrogate_is_no_text() -> None:
    with pytest.raises(ValueError, match="prompt"):
        Job(prompt="\ud800")

"""Pieces of calls, cut anywhere and written again by later attempts, are handed out once and join up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import AnswerChanged
from sparkle.producers.answer_order import AnswerOrder
from sparkle.producers.calls_order import joined
from sparkle.schemas.answer import Channel, Chunk, FinishReason, Result, Usage
from sparkle.schemas.tools import ToolCall, ToolCallDelta

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
USAGE = Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0)
CALLS = [
    ToolCall(id="c0", name="get", arguments={"a": "some text", "n": [1, 2.5, None]}),
    ToolCall(id="c1", name="stop", arguments={}),
    ToolCall(id="c2", name="get", arguments={"ü": "é"}),
]


def text_of(call: ToolCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def pieces(calls: Sequence[ToolCall], cuts: Sequence[int]) -> list[ToolCallDelta]:
    """The calls in pieces: a name first, then its arguments, cut at every one of `cuts`."""
    found: list[ToolCallDelta] = []
    for index, call in enumerate(calls):
        text = text_of(call)
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        found.append(ToolCallDelta(index=index, id=call.id, name=call.name))
        found += [
            ToolCallDelta(index=index, arguments=text[start:end], arguments_start=start)
            for start, end in pairwise(places)
        ]
    return found


def chunks(deltas: Sequence[ToolCallDelta], *, attempt: int, each: int) -> list[Chunk]:
    """A token a piece, several pieces a chunk."""
    found: list[Chunk] = []
    for seq, start in enumerate(range(0, len(deltas), each)):
        some = deltas[start : start + each]
        found.append(
            Chunk(
                job=JOB,
                attempt=attempt,
                seq=seq,
                # the tokens of all calls come with the first chunk: pieces alone are told apart here
                first_index=0 if seq == 0 else 1,
                tokens=[7] if seq == 0 else [],
                text="",
                text_start=0,
                channel=Channel.ANSWER,
                worker=f"w{attempt}",
                tool_calls=[*some],
            )
        )
    return found


def result(calls: Sequence[ToolCall], tokens: list[int]) -> Result:
    return Result(
        job=JOB,
        attempt=9,
        worker="w9",
        text="",
        tokens=tokens,
        tool_calls=[*calls],
        finish_reason=FinishReason.TOOL_CALLS,
        usage=USAGE,
    )


def put_together(handed_out: Sequence[Chunk]) -> list[ToolCall]:
    """The calls as a consumer reads them."""
    found: list[tuple[str, str, str]] = []
    for chunk in handed_out:
        for delta in chunk.tool_calls:
            if delta.name is not None:
                assert delta.index == len(found)
                assert delta.id is not None
                found.append((delta.id, delta.name, ""))
            call_id, name, so_far = found[delta.index]
            assert delta.arguments_start == len(so_far)
            found[delta.index] = (call_id, name, so_far + delta.arguments)
    return [ToolCall(id=call_id, name=name, arguments=json.loads(text)) for call_id, name, text in found]


cuts = st.lists(st.integers(0, 200), max_size=12)


@given(st.lists(st.tuples(cuts, st.integers(1, 4), st.integers(0, 40)), max_size=4), st.integers(1, 3))
def test_whatever_attempts_write_again_the_consumer_reads_each_piece_once(
    attempts: list[tuple[list[int], int, int]], calls: int
) -> None:
    order = AnswerOrder()
    handed_out: list[Chunk] = []
    for attempt, (cut, each, broken_off) in enumerate(attempts, start=1):
        for chunk in chunks(pieces(CALLS[:calls], cut), attempt=attempt, each=each)[:broken_off]:
            handed_out += order.take(chunk)
    handed_out += order.finish(result(CALLS[:calls], [7]))
    assert put_together(handed_out) == CALLS[:calls]


def test_a_cut_call_is_handed_out_and_in_no_result() -> None:
    order = AnswerOrder()
    some = pieces(CALLS, [])[:-1]
    handed_out = [part for chunk in chunks(some, attempt=1, each=2) for part in order.take(chunk)]
    assert [delta for chunk in handed_out for delta in chunk.tool_calls] == some
    assert order.finish(result(CALLS[:2], [7])) == []


@pytest.mark.parametrize(
    "other",
    [
        CALLS[0].model_copy(update={"name": "set"}),
        CALLS[0].model_copy(update={"arguments": {"a": "other text"}}),
    ],
)
def test_another_call_than_the_one_handed_out_is_told(other: ToolCall) -> None:
    order = AnswerOrder()
    for chunk in chunks(pieces(CALLS[:1], []), attempt=1, each=9):
        order.take(chunk)
    with pytest.raises(AnswerChanged):
        order.finish(result([other], [7]))
    (again,) = chunks(pieces([other], []), attempt=2, each=9)
    with pytest.raises(AnswerChanged):
        order.take(again)


def test_pieces_of_one_call_become_one() -> None:
    merged = joined(pieces(CALLS, [1, 5, 9]))
    assert [(delta.index, delta.id, delta.arguments) for delta in merged] == [
        (index, call.id, text_of(call)) for index, call in enumerate(CALLS)
    ]

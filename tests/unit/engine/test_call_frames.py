"""An answer with tool calls as frames: its pieces join up, also replayed, and its end says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from sparkle.engine.answer_frames import AnswerFrames
from sparkle.engine.frames import Delta, Finished
from sparkle.engine.plan import Drawn
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job, Turn
from sparkle.schemas.tools import Tool
from sparkle.text.call_values import ValueForm
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from sparkle.workers.calls import CallsSoFar

TOKENIZER = Tokenizer.load(Path(__file__).parents[3] / "sparkle" / "checkpoints" / "sparkle-tiny")
ADDED = TOKENIZER.added_tokens
END = ADDED["<|im_end|>"]
JOB = Job(messages=[Turn(role="user", content="?")], tools=[Tool(name="get"), Tool(name="stop")])
# no grammar is looked into here
SHAPE = Shape(compiled=cast(LLMatcher, object()), calls={"get": {"city": ValueForm(raw=True)}, "stop": {}})
GET = "\n<function=get>\n<parameter=city>\nSão Paulo\n</parameter>\n</function>\n"
STOP = "\n<function=stop>\n</function>\n"
TOKENS = [
    *TOKENIZER.encode("Let me look.\n\n"),
    *(ADDED["<tool_call>"], *TOKENIZER.encode(GET), ADDED["</tool_call>"]),
    *TOKENIZER.encode("\n"),
    *(ADDED["<tool_call>"], *TOKENIZER.encode(STOP), ADDED["</tool_call>"]),
    END,
]


def frames(shape: Shape = SHAPE) -> AnswerFrames:
    return AnswerFrames(JOB, TOKENIZER, prompt_tokens=3, stop_tokens={END}, shape=shape)


def drawn(tokens: list[int]) -> list[Drawn]:
    return [Drawn(request=JOB.id, token=token) for token in tokens]


def put_together(deltas: list[Delta]) -> tuple[str, list[tuple[str, object]], bool]:
    """The text, the whole calls, and whether one is cut; pieces that do not join up raise."""
    calls = CallsSoFar(JOB.id)
    for delta in deltas:
        calls.add(delta.calls)
    text = "".join(delta.text for delta in deltas)
    return text, [(call.name, call.arguments) for call in calls.whole()], calls.is_cut


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(0, len(TOKENS)))
def test_pieces_join_up_however_many_tokens_come_at_once_and_behind_a_replay(
    counts: list[int], known: int
) -> None:
    answer = frames()
    deltas = [*answer.replay(TOKENS[:known])]
    place = known
    for count in [*counts, len(TOKENS)]:
        some = TOKENS[place : place + count]
        place += len(some)
        deltas += answer.add(drawn(some), guessed=[False] * len(some))
    *rest, finished = answer.end(FinishReason.STOP, ended=True)
    deltas += [frame for frame in rest if isinstance(frame, Delta)]
    assert [token for delta in deltas for token in delta.tokens] == TOKENS
    assert put_together(deltas) == ("Let me look.", [("get", {"city": "São Paulo"}), ("stop", {})], False)
    assert isinstance(finished, Finished)
    assert (finished.finish_reason, finished.enforced) == (FinishReason.TOOL_CALLS, True)


@pytest.mark.parametrize("cut", range(1, len(TOKENS)))
def test_an_answer_that_was_cut_has_its_whole_calls_and_is_not_enforced(cut: int) -> None:
    answer = frames()
    deltas = answer.add(drawn(TOKENS[:cut]), guessed=[False] * cut)
    *rest, finished = answer.end(FinishReason.LENGTH)
    text, calls, _ = put_together([*deltas, *(frame for frame in rest if isinstance(frame, Delta))])
    assert "Let me look.\n\n".startswith(text)
    assert calls == [("get", {"city": "São Paulo"}), ("stop", {})][: len(calls)]
    assert isinstance(finished, Finished)
    assert (finished.finish_reason, finished.enforced) == (FinishReason.LENGTH, False)


def test_where_something_was_loosened_nothing_is_enforced() -> None:
    loose = Shape(compiled=SHAPE.compiled, calls=SHAPE.calls, exact=False)
    answer = frames(loose)
    answer.add(drawn(TOKENS), guessed=[False] * len(TOKENS))
    finished = answer.end(FinishReason.STOP, ended=True)[-1]
    assert isinstance(finished, Finished)
    assert (finished.finish_reason, finished.enforced) == (FinishReason.TOOL_CALLS, False)


def test_prose_alone_ends_as_any_answer() -> None:
    answer = frames()
    tokens = [*TOKENIZER.encode("No tool."), END]
    answer.add(drawn(tokens), guessed=[False] * len(tokens))
    finished = answer.end(FinishReason.STOP, ended=True)[-1]
    assert isinstance(finished, Finished)
    assert (finished.finish_reason, finished.enforced) == (FinishReason.STOP, True)

"""Frames survive the way to the other process, and what is no frame is refused."""

from __future__ import annotations

import pytest

from sparkle.engine import frames
from sparkle.engine.frames import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Accepted,
    Cached,
    CancelRequest,
    Delta,
    EndConversation,
    Failed,
    Finished,
    Frame,
    Ping,
    Pong,
    Ready,
    Refused,
    Shutdown,
    Submit,
)
from sparkle.errors import EngineError, FailureCode, InvalidMessage
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.packing import pack

FRAMES: list[Frame] = [
    Submit(job="a", payload=b"\x00\xff"),
    CancelRequest(job="a"),
    EndConversation(tenant="t", conversation="c"),
    EndConversation(tenant=None, conversation="c"),
    Ping(),
    Pong(),
    Shutdown(),
    Ready(model="m", slots=1, max_context_tokens=2, kv_tokens=3, load_s=0.5),
    Refused(reason="m is no checkpoint"),
    Accepted(job="a", prompt_tokens=4),
    Delta(job="a", first_index=1, tokens=[5, 6], text="é", text_start=2, channel=Channel.REASONING),
    Delta(
        job="a",
        first_index=1,
        tokens=[5],
        text="",
        text_start=0,
        channel=Channel.ANSWER,
        logprobs=[[-0.5, "a", None, [[5, -0.5, "a", None], [6, -2.0, "\\xe2", b"\xe2"]]]],
    ),
    Finished(
        job="a",
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        drafts={"lookup": [2, 9, 5]},
    ),
    Cached(checkpoints=3, evicted=4, preempted=5),
    Failed(job="a", code=FailureCode.TOO_LONG, message="m", retryable=False),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.kind)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    data = frames.encode(frame)
    length = frames.body_length(data[:LENGTH_BYTES])
    assert length == len(data) - LENGTH_BYTES
    back = frames.decode(data[LENGTH_BYTES:])
    assert back == frame
    assert type(back) is type(frame)


def test_every_kind_is_here() -> None:
    assert {frame.kind for frame in FRAMES} == set(frames._KINDS)  # pyright: ignore[reportPrivateUsage] - no kind may be missing


def test_a_frame_that_is_too_long_is_neither_written_nor_read() -> None:
    with pytest.raises(EngineError, match=f"at most {MAX_FRAME_BYTES} fit"):
        frames.encode(Submit(job="a", payload=bytes(MAX_FRAME_BYTES)))
    with pytest.raises(EngineError, match=f"at most {MAX_FRAME_BYTES} are read"):
        frames.body_length((MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(EngineError, match="different versions"):
        frames.decode(pack({"kind": "unheard-of"}))
    with pytest.raises(InvalidMessage):
        frames.decode(b"\xc1")

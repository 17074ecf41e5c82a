"""An answer grows by deltas that join up, is numbered without a gap, and ends as the whole of them."""

from __future__ import annotations

import pytest

from sparkle.engine.frames import Delta, Finished
from sparkle.errors import EngineError
from sparkle.schemas.answer import Alternative, Channel, Chunk, FinishReason, TokenLogprobs
from sparkle.schemas.ids import new_job_id
from sparkle.workers.answer import AnswerSoFar

JOB = new_job_id()


def delta(
    first_index: int,
    text: str,
    text_start: int,
    channel: Channel = Channel.ANSWER,
    logprob: float | None = None,
) -> Delta:
    return Delta(
        job=JOB,
        first_index=first_index,
        tokens=[first_index + 100],
        text=text,
        text_start=text_start,
        channel=channel,
        logprobs=None
        if logprob is None
        else [[logprob, "a", None, [[7, logprob, "a", None], [8, -3.0, "\\xe2", b"\xe2"]]]],
    )


def finished() -> Finished:
    return Finished(
        job=JOB,
        finish_reason=FinishReason.STOP,
        prompt_tokens=5,
        cached_tokens=4,
        completion_tokens=3,
        drafts={"lookup": [1, 1, 0], "mtp": [1, 1, 1]},
    )


def answer() -> AnswerSoFar:
    return AnswerSoFar(job=JOB, attempt=2, worker="w-1")


def test_the_result_is_all_that_was_written_with_both_texts_apart() -> None:
    writing = answer()
    writing.add(delta(0, "hm", 0, Channel.REASONING))
    writing.add(delta(1, "ye", 0))
    writing.add(delta(2, "s", 2))
    result = writing.result(finished(), queue_s=0.5, first_token_s=0.25, total_s=1.5)
    assert (result.text, result.reasoning, result.tokens) == ("yes", "hm", [100, 101, 102])
    assert (result.job, result.attempt, result.worker) == (JOB, 2, "w-1")
    assert result.finish_reason is FinishReason.STOP
    assert result.usage.model_dump() == {
        "prompt_tokens": 5,
        "cached_tokens": 4,
        "completion_tokens": 3,
        "drafted_tokens": 2,
        "accepted_tokens": 1,
        "queue_s": 0.5,
        "first_token_s": 0.25,
        "total_s": 1.5,
    }
    assert result.logprobs is None
    assert writing.num_tokens == 3


def test_chunks_are_numbered_from_nought_and_carry_attempt_and_worker() -> None:
    writing = answer()
    chunks: list[Chunk] = []
    for one in (delta(0, "a", 0, logprob=-0.25), delta(1, "b", 1, logprob=-0.5), delta(2, "c", 2)):
        writing.add(one)
        chunks.append(writing.chunk(one))
    first, second, _ = chunks
    assert (first.seq, second.seq) == (0, 1)
    assert (second.attempt, second.worker, second.first_index, second.text_start) == (2, "w-1", 1, 1)
    assert (second.tokens, second.text) == ([101], "b")
    assert first.logprobs is not None
    assert first.logprobs[0].logprob == -0.25
    assert second.logprobs == [
        TokenLogprobs(
            logprob=-0.5,
            text="a",
            top=[
                Alternative(token=7, logprob=-0.5, text="a"),
                Alternative(token=8, logprob=-3.0, text="\\xe2", octets=b"\xe2"),
            ],
        )
    ]


def test_log_probabilities_are_in_the_result() -> None:
    writing = answer()
    writing.add(delta(0, "a", 0, logprob=-1.0))
    writing.add(delta(1, "b", 1, logprob=-2.0))
    result = writing.result(finished(), queue_s=0, first_token_s=0, total_s=0)
    assert result.logprobs is not None
    assert [entry.logprob for entry in result.logprobs] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("first_index", "text_start"), [(0, 2), (2, 2), (1, 1), (1, 3)], ids=["again", "gap", "overlap", "hole"]
)
def test_a_delta_that_does_not_join_up_is_refused(first_index: int, text_start: int) -> None:
    writing = answer()
    writing.add(delta(0, "se", 0))
    with pytest.raises(
        EngineError, match=f"starts at token {first_index} and character {text_start}"
    ) as caught:
        writing.add(delta(first_index, "cret", text_start))
    assert "cret" not in str(caught.value)

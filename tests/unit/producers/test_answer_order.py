"""Chunks in any order, with losses and attempts, give every token and character once and in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import AnswerChanged
from sparkle.producers.answer_order import MAX_EARLY_CHUNKS, AnswerOrder, Gap
from sparkle.schemas.answer import Channel, Chunk, FinishReason, Result, TokenLogprobs, Usage
from sparkle.schemas.answered import Answered

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
USAGE = Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0)


def chunk(
    seq: int,
    first_index: int,
    tokens: list[int],
    text: str,
    text_start: int,
    *,
    attempt: int = 1,
    channel: Channel = Channel.ANSWER,
    worker: str = "w1",
) -> Chunk:
    return Chunk(
        job=JOB,
        attempt=attempt,
        seq=seq,
        first_index=first_index,
        tokens=tokens,
        text=text,
        text_start=text_start,
        channel=channel,
        worker=worker,
    )


def result(tokens: list[int], text: str, *, reasoning: str = "", attempt: int = 1) -> Result:
    return Result(
        job=JOB,
        attempt=attempt,
        worker="w1",
        text=text,
        reasoning=reasoning,
        tokens=tokens,
        finish_reason=FinishReason.STOP,
        usage=USAGE,
    )


def parts(chunks: list[Chunk]) -> list[tuple[int, list[int], int, str]]:
    return [(part.first_index, part.tokens, part.text_start, part.text) for part in chunks]


def test_chunks_in_order_pass_unchanged() -> None:
    order = AnswerOrder()
    first, second = chunk(0, 0, [7], "a", 0), chunk(1, 1, [8], "b", 1)
    assert order.take(first) == [first]
    assert order.take(second) == [second]
    assert order.take(second) == []
    assert order.gap is None


def test_an_early_chunk_waits_and_shows_the_gap() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1], "a", 0))
    assert order.take(chunk(3, 3, [4], "d", 3)) == []
    assert order.gap == Gap("w1", 1, 1)
    assert parts(order.take(chunk(1, 1, [2], "b", 1))) == [(1, [2], 1, "b")]
    assert order.gap == Gap("w1", 1, 2)
    assert parts(order.take(chunk(2, 2, [3], "c", 2))) == [(2, [3], 2, "c"), (3, [4], 3, "d")]
    assert order.gap is None


def test_early_chunks_are_bounded_and_the_missing_one_still_enters() -> None:
    order = AnswerOrder()
    for seq in range(1, MAX_EARLY_CHUNKS + 10):
        order.take(chunk(seq, seq, [seq], "x", seq))
    ready = order.take(chunk(0, 0, [0], "x", 0))
    assert [part.seq for part in ready] == list(range(MAX_EARLY_CHUNKS + 1))
    assert order.gap is None
    # what was dropped is asked for when the next one comes
    order.take(chunk(MAX_EARLY_CHUNKS + 20, 9000, [1], "x", 9000))
    assert order.gap == Gap("w1", 1, MAX_EARLY_CHUNKS + 1)


def test_a_higher_attempt_goes_on_inside_a_chunk() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1, 2], "ab", 0))
    order.take(chunk(1, 2, [3], "c", 2))
    assert order.take(chunk(0, 0, [1], "a", 0, attempt=2)) == []
    longer = order.take(chunk(1, 1, [2, 3, 4, 5], "bcde", 1, attempt=2))
    assert parts(longer) == [(3, [4, 5], 3, "de")]
    assert longer[0].attempt == 2
    # whatever the first attempt still sends is too late
    assert order.take(chunk(2, 3, [4], "d", 3)) == []


def test_another_worker_with_the_same_attempt_takes_over() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1], "a", 0))
    order.take(chunk(1, 1, [2], "b", 1))
    # the job was lost with its stream and published again: its attempts count from 1 again
    assert order.take(chunk(1, 3, [4], "d", 3, worker="w2")) == []
    assert order.gap == Gap("w2", 1, 0)
    taken_over = order.take(chunk(0, 0, [1, 2, 3], "abc", 0, worker="w2"))
    assert parts(taken_over) == [(2, [3], 2, "c"), (3, [4], 3, "d")]
    # the first worker lives after all: it is not listened to any more
    assert order.take(chunk(2, 2, [3], "c", 2)) == []
    assert parts(order.take(chunk(2, 4, [5], "e", 4, worker="w2"))) == [(4, [5], 4, "e")]
    assert parts(order.take(chunk(0, 0, [1, 2, 3, 4, 5, 6], "abcdef", 0, attempt=2))) == [(5, [6], 5, "f")]


def test_tokens_and_text_are_trimmed_apart() -> None:
    order = AnswerOrder()
    # two tokens came, the second one's text was held back
    order.take(chunk(0, 0, [1, 2], "a", 0))
    assert parts(order.take(chunk(0, 0, [1, 2], "ab", 0, attempt=2))) == [(2, [], 1, "b")]


def test_the_channels_have_texts_of_their_own() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1], "why", 0, channel=Channel.REASONING))
    order.take(chunk(1, 1, [2], "yes", 0))
    again = chunk(0, 0, [1], "why?", 0, attempt=2, channel=Channel.REASONING)
    assert parts(order.take(again)) == [(2, [], 3, "?")]
    assert parts(order.take(chunk(1, 1, [2, 3], "yes!", 0, attempt=2))) == [(2, [3], 3, "!")]


def test_logprobs_are_trimmed_with_their_tokens() -> None:
    order = AnswerOrder()
    logprobs = [TokenLogprobs(logprob=-float(place), top=[]) for place in range(3)]
    order.take(chunk(0, 0, [1], "a", 0))
    again = chunk(0, 0, [1, 2, 3], "abc", 0, attempt=2).model_copy(update={"logprobs": logprobs})
    assert order.take(again)[0].logprobs == logprobs[1:]


@pytest.mark.parametrize(
    ("tokens", "text"), [([1, 9, 3], "abc"), ([1, 2, 3], "axc")], ids=["another token", "another text"]
)
def test_another_answer_is_refused_without_showing_it(tokens: list[int], text: str) -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1, 2], "ab", 0))
    with pytest.raises(AnswerChanged) as caught:
        order.take(chunk(0, 0, tokens, text, 0, attempt=2))
    assert str(caught.value) == (
        "attempt 2 wrote another answer than the one handed out so far; await the result instead"
    )


@pytest.mark.parametrize(
    "whole",
    [result([1, 9], "abc"), result([1], "ab"), result([1, 2], "a"), result([1, 2], "xb")],
    ids=["another token", "fewer tokens", "less text", "another text"],
)
def test_a_result_of_another_answer_is_refused(whole: Result) -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1, 2], "ab", 0))
    with pytest.raises(AnswerChanged):
        order.finish(whole)


def test_an_attempt_that_starts_behind_the_known_part_is_held_for_the_result() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1], "a", 0))
    assert order.take(chunk(0, 3, [4], "d", 3, attempt=2)) == []
    assert order.take(chunk(1, 4, [5], "e", 4, attempt=2)) == []
    assert parts(order.finish(result([1, 2, 3, 4, 5], "abcde", attempt=2))) == [(1, [2, 3, 4, 5], 1, "bcde")]


def test_the_result_fills_the_tail() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1], "a", 0))
    order.take(chunk(2, 2, [3], "c", 2))
    tail = order.finish(result([1, 2, 3, 4], "abc"))
    assert parts(tail) == [(1, [2, 3, 4], 1, "bc")]
    assert (tail[0].seq, tail[0].attempt, tail[0].worker, tail[0].channel) == (1, 1, "w1", Channel.ANSWER)


def test_the_result_alone_is_both_channels() -> None:
    tail = AnswerOrder().finish(result([1, 2], "yes", reasoning="why"))
    assert [(part.seq, part.channel, part.tokens, part.text) for part in tail] == [
        (0, Channel.REASONING, [], "why"),
        (1, Channel.ANSWER, [1, 2], "yes"),
    ]


def test_a_complete_stream_leaves_no_tail() -> None:
    order = AnswerOrder()
    order.take(chunk(0, 0, [1, 2], "ab", 0))
    assert order.finish(result([1, 2], "ab")) == []
    # an end token without text is a tail of its own
    assert parts(order.finish(result([1, 2, 3], "ab"))) == [(2, [3], 2, "")]


def stream(chance: random.Random, tokens: list[int], text: str, attempt: int, start: int) -> list[Chunk]:
    """The answer cut at random, one character a token, text held back by up to three tokens."""
    chunks: list[Chunk] = []
    at, said = start, start
    while at < len(tokens) or said < len(text):
        end = min(len(tokens), at + chance.randrange(4))
        until = len(text) if end == len(tokens) else max(said, end - chance.randrange(4))
        chunks.append(chunk(len(chunks), at, tokens[at:end], text[said:until], said, attempt=attempt))
        at, said = end, until
    return chunks


@given(seed=st.integers(0, 2**32), length=st.integers(1, 60), attempts=st.integers(1, 3))
def test_any_loss_and_order_gives_the_answer_once(seed: int, length: int, attempts: int) -> None:
    chance = random.Random(seed)
    tokens = [chance.randrange(1000) for _ in range(length)]
    text = "".join(chr(97 + token % 26) for token in tokens)
    order = AnswerOrder()
    got_tokens: list[int] = []
    got_text = ""
    for attempt in range(1, attempts + 1):
        chunks = stream(
            chance, tokens, text, attempt, chance.choice([0, min(len(got_tokens), len(got_text))])
        )
        if attempt < attempts:
            del chunks[chance.randrange(len(chunks) + 1) :]
        kept = [part for part in chunks if chance.random() < 0.9]
        chance.shuffle(kept)
        for part in kept + [part for part in kept if chance.random() < 0.2]:
            for ready in order.take(part):
                assert (ready.first_index, ready.text_start) == (len(got_tokens), len(got_text))
                got_tokens += ready.tokens
                got_text += ready.text
        assert tokens[: len(got_tokens)] == got_tokens
        assert text.startswith(got_text)
    for ready in order.finish(result(tokens, text, attempt=attempts)):
        got_tokens += ready.tokens
        got_text += ready.text
    assert (got_tokens, got_text) == (tokens, text)


def test_a_worker_is_told_what_was_handed_out_and_nothing_that_came_too_early() -> None:
    order = AnswerOrder()
    assert order.answered(JOB, 0) == Answered(job=JOB, attempt=0, tokens=[])
    order.take(chunk(0, 0, [1, 2], "ab", 0, attempt=2))
    order.take(chunk(2, 3, [4], "d", 3, attempt=2))
    assert order.answered(JOB, 0) == Answered(job=JOB, attempt=2, tokens=[1, 2])
    assert order.answered(JOB, 1).tokens == [2]
    assert order.answered(JOB, 9).tokens == []


def test_log_probabilities_are_told_with_their_tokens_across_attempts() -> None:
    order = AnswerOrder()
    likely = [TokenLogprobs(logprob=-float(place), top=[]) for place in range(4)]
    first = chunk(0, 0, [1, 2], "ab", 0).model_copy(update={"logprobs": likely[:2]})
    again = chunk(0, 1, [2, 3, 4], "bcd", 1, attempt=2).model_copy(update={"logprobs": likely[1:]})
    order.take(first)
    order.take(again)
    assert order.answered(JOB, 0).logprobs == likely
    assert order.answered(JOB, 3).logprobs == likely[3:]

"""When chunks leave, on a clock set by hand: the first at once, none after the window, nothing changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.frames import Delta
from sparkle.schemas.answer import Channel
from sparkle.workers.coalesce import Coalescer

WINDOW_S = 0.020


@dataclass
class Writer:
    """Makes deltas that join up."""

    index: int = 0
    chars: dict[Channel, int] = field(default_factory=lambda: dict.fromkeys(Channel, 0))

    def write(
        self,
        text: str,
        *,
        num_tokens: int = 1,
        channel: Channel = Channel.ANSWER,
        logprobs: bool = False,
    ) -> Delta:
        tokens = list(range(self.index, self.index + num_tokens))
        delta = Delta(
            job="j",
            first_index=self.index,
            tokens=tokens,
            text=text,
            text_start=self.chars[channel],
            channel=channel,
            logprobs=[[-float(token), "a", None, []] for token in tokens] if logprobs else None,
        )
        self.index += num_tokens
        self.chars[channel] += len(text)
        return delta


def test_the_first_token_leaves_at_once() -> None:
    coalescer, first = Coalescer(WINDOW_S), Writer().write("a")
    assert coalescer.add(first, 5.0) == [first]
    assert coalescer.due_s is None


def test_tokens_inside_the_window_leave_together_at_its_end() -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    coalescer.add(writer.write("a"), 5.0)
    assert coalescer.add(writer.write("b"), 5.001) == []
    assert coalescer.add(writer.write("c", num_tokens=2), 5.019) == []
    assert coalescer.due_s == 5.0 + WINDOW_S
    assert coalescer.take_due(5.0199) == []
    (together,) = coalescer.take_due(5.0 + WINDOW_S)
    assert (together.first_index, together.tokens, together.text, together.text_start) == (
        1,
        [1, 2, 3],
        "bc",
        1,
    )
    assert coalescer.due_s is None


def test_a_slow_answer_leaves_token_by_token_without_waiting() -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    for number in range(5):
        delta = writer.write("a")
        assert coalescer.add(delta, 5.0 + number * WINDOW_S) == [delta]


def test_a_late_timer_sends_what_is_held_with_the_token_that_comes() -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    coalescer.add(writer.write("a"), 5.0)
    coalescer.add(writer.write("b"), 5.01)
    (together,) = coalescer.add(writer.write("c"), 5.5)
    assert together.text == "bc"


def test_another_channel_sends_what_is_held_first() -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    coalescer.add(writer.write("a", channel=Channel.REASONING), 5.0)
    held = writer.write("b", channel=Channel.REASONING)
    coalescer.add(held, 5.001)
    answer = writer.write("c")
    assert coalescer.add(answer, 5.002) == [held]
    assert coalescer.flush(5.003) == [answer]


def test_log_probabilities_stay_with_their_tokens() -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    coalescer.add(writer.write("a", logprobs=True), 5.0)
    coalescer.add(writer.write("b", logprobs=True), 5.001)
    coalescer.add(writer.write("c", logprobs=True), 5.002)
    (together,) = coalescer.flush(5.003)
    assert together.logprobs == [[-1.0, "a", None, []], [-2.0, "a", None, []]]


def test_flushing_nothing_sends_nothing() -> None:
    coalescer = Coalescer(WINDOW_S)
    assert coalescer.flush(1.0) == []
    assert coalescer.take_due(1.0) == []


steps = st.lists(
    st.tuples(
        st.floats(min_value=0.0, max_value=0.1),
        st.text(max_size=3),
        st.integers(min_value=0, max_value=3),
        st.sampled_from(Channel),
    ),
    max_size=40,
)


@given(steps)
def test_nothing_is_lost_reordered_or_held_longer_than_the_window(
    plan: list[tuple[float, str, int, Channel]],
) -> None:
    coalescer, writer = Coalescer(WINDOW_S), Writer()
    now_s = 100.0
    came: dict[int, float] = {}
    sent: list[tuple[float, Delta]] = []
    written: list[Delta] = []
    for pause_s, text, num_tokens, channel in plan:
        next_s = now_s + pause_s
        due_s = coalescer.due_s
        if due_s is not None and due_s <= next_s:
            sent += [(due_s, delta) for delta in coalescer.take_due(due_s)]
        now_s = next_s
        delta = writer.write(text, num_tokens=num_tokens, channel=channel)
        written.append(delta)
        came |= dict.fromkeys(delta.tokens, now_s)
        sent += [(now_s, out) for out in coalescer.add(delta, now_s)]
    sent += [(now_s, out) for out in coalescer.flush(now_s)]

    chunks = [delta for _, delta in sent]
    assert [token for chunk in chunks for token in chunk.tokens] == list(range(writer.index))
    for channel in Channel:
        in_order = [delta.text for delta in written if delta.channel is channel]
        assert "".join(chunk.text for chunk in chunks if chunk.channel is channel) == "".join(in_order)
    for left_s, chunk in sent:
        assert all(left_s - came[token] <= WINDOW_S + 1e-9 for token in chunk.tokens)

"""Chunks kept for those who missed them, within a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkle.queue.kept import KeptChunks, Sent


def sent(text: str) -> Sent:
    return "reply.acme.job", text.encode(), {"a": "b"}


def kept_with(*texts: str, max_bytes: int = 1000) -> KeptChunks:
    kept = KeptChunks(max_bytes=max_bytes, after_end_s=60.0)
    for seq, text in enumerate(texts):
        kept.add("a", 1, seq, sent(text), now_s=0.0)
    return kept


def test_all_chunks_from_the_one_asked_for_are_there() -> None:
    kept = kept_with("zero", "one", "two")
    assert kept.since("a", 1, 1) == [sent("one"), sent("two")]
    assert kept.since("a", 1, 3) == []


def test_another_attempt_or_job_has_none() -> None:
    kept = kept_with("zero")
    assert kept.since("a", 2, 0) == []
    assert kept.since("b", 1, 0) == []


def test_a_later_attempt_replaces_an_earlier_one() -> None:
    kept = kept_with("zero", "one")
    kept.add("a", 2, 0, sent("new"), now_s=0.0)
    assert kept.since("a", 1, 0) == []
    assert kept.since("a", 2, 0) == [sent("new")]
    assert kept.size_bytes == len("new")


def test_they_go_a_minute_after_the_end() -> None:
    kept = kept_with("zero")
    kept.trim(now_s=1000.0)
    assert kept.since("a", 1, 0) == [sent("zero")]
    kept.end("a", now_s=1000.0)
    kept.trim(now_s=1060.0)
    assert kept.since("a", 1, 0) == [sent("zero")]
    kept.trim(now_s=1060.1)
    assert kept.since("a", 1, 0) == []
    assert kept.size_bytes == 0


def test_without_room_the_first_that_ended_goes_before_any_that_runs() -> None:
    kept = kept_with("aaaa", max_bytes=12)
    kept.add("b", 1, 0, sent("bbbb"), now_s=0.0)
    kept.end("b", now_s=1.0)
    kept.add("c", 1, 0, sent("cccc"), now_s=1.0)
    kept.add("d", 1, 0, sent("dddd"), now_s=1.0)
    assert [bool(kept.since(job, 1, 0)) for job in "abcd"] == [True, False, True, True]
    kept.add("d", 1, 1, sent("dddd"), now_s=1.0)
    assert [bool(kept.since(job, 1, 0)) for job in "abcd"] == [False, False, True, True]


def test_after_room_was_made_only_what_follows_can_be_had() -> None:
    kept = kept_with("aaaa", "bbbb", "cccc", max_bytes=8)
    assert kept.since("a", 1, 0) == []
    assert kept.size_bytes <= 8


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "end", "new attempt"]),
        st.sampled_from("abc"),
        st.integers(0, 40),
        st.floats(0, 50),
    ),
    max_size=60,
)


@given(steps=steps)
def test_it_never_holds_more_than_its_bound_and_never_a_wrong_chunk(
    steps: list[tuple[str, str, int, float]],
) -> None:
    kept = KeptChunks(max_bytes=100, after_end_s=60.0)
    now_s, attempts, written = 0.0, dict.fromkeys("abc", 1), {job: list[Sent]() for job in "abc"}
    for what, job, size, later_s in steps:
        now_s += later_s
        if what == "add":
            chunk: Sent = (f"reply.acme.{job}", bytes([len(written[job])]) * size, {})
            kept.add(job, attempts[job], len(written[job]), chunk, now_s=now_s)
            written[job].append(chunk)
        elif what == "end":
            kept.end(job, now_s=now_s)
        else:
            attempts[job] += 1
            written[job] = []
        assert 0 <= kept.size_bytes <= 100
        for each in "abc":
            for from_seq in range(len(written[each])):
                assert kept.since(each, attempts[each], from_seq) in ([], written[each][from_seq:])

"""What a client remembers of its conversations: the last worker, for a while, within a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkle.producers.homes import Homes

KEEP_S = 600.0
TENANT = "acme"


def test_the_last_answer_counts() -> None:
    homes = Homes(KEEP_S)
    assert homes.of(TENANT, "c", now_s=0.0) is None
    homes.answered(TENANT, "c", "w-1", now_s=0.0)
    homes.answered(TENANT, "d", "w-1", now_s=0.0)
    homes.answered(TENANT, "c", "w-2", now_s=1.0)
    assert (homes.of(TENANT, "c", now_s=1.0), homes.of(TENANT, "d", now_s=1.0)) == ("w-2", "w-1")


def test_a_job_of_no_conversation_has_no_home() -> None:
    homes = Homes(KEEP_S)
    homes.answered(TENANT, None, "w-1", now_s=0.0)
    assert homes.of(TENANT, None, now_s=0.0) is None
    assert len(homes) == 0


def test_a_home_is_forgotten_in_time() -> None:
    homes = Homes(KEEP_S)
    homes.answered(TENANT, "c", "w-1", now_s=0.0)
    homes.answered(TENANT, "d", "w-1", now_s=5.0)
    assert homes.of(TENANT, "c", now_s=KEEP_S) == "w-1"
    assert homes.of(TENANT, "c", now_s=KEEP_S + 0.5) is None
    assert len(homes) == 1


def test_an_ended_conversation_has_no_home() -> None:
    homes = Homes(KEEP_S)
    homes.answered(TENANT, "c", "w-1", now_s=0.0)
    homes.answered(TENANT, "d", "w-1", now_s=0.0)
    homes.ended(TENANT, "c")
    homes.ended(TENANT, "never seen")
    assert (homes.of(TENANT, "c", now_s=0.0), homes.of(TENANT, "d", now_s=0.0)) == (None, "w-1")


def test_conversations_of_two_tenants_are_two() -> None:
    homes = Homes(KEEP_S)
    homes.answered("acme", "c", "w-1", now_s=0.0)
    homes.answered("other", "c", "w-2", now_s=0.0)
    homes.ended("other", "c")
    assert (homes.of("acme", "c", now_s=0.0), homes.of("other", "c", now_s=0.0)) == ("w-1", None)


def test_of_too_many_the_longest_unanswered_go() -> None:
    homes = Homes(KEEP_S, max_conversations=2)
    for now_s, conversation in enumerate(["a", "b", "a", "c"]):
        homes.answered(TENANT, conversation, "w-1", now_s=float(now_s))
    assert [homes.of(TENANT, name, now_s=4.0) for name in ("a", "b", "c")] == ["w-1", None, "w-1"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.sampled_from(["w-1", "w-2"]), st.floats(0.0, 400.0)),
        max_size=40,
    )
)
def test_it_knows_what_a_plain_list_of_answers_says(answers: list[tuple[str, str, float]]) -> None:
    homes = Homes(KEEP_S, max_conversations=3)
    now_s = 0.0
    said: dict[str, tuple[float, str]] = {}
    for conversation, worker, later_s in answers:
        now_s += later_s
        homes.answered(TENANT, conversation, worker, now_s=now_s)
        said.pop(conversation, None)
        said[conversation] = (now_s, worker)
        kept = dict(list(said.items())[-3:])
        for name in "abcde":
            at_s, last = kept.get(name, (-KEEP_S - 1.0, ""))
            assert homes.of(TENANT, name, now_s=now_s) == (last if now_s - at_s <= KEEP_S else None)

"""The prefix cache case by case: what is not read again, and whose room it takes."""

from __future__ import annotations

import pytest

from sparkle.engine.plan import PassPlan
from sparkle.engine.request import RequestState
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.priority import PriorityClass
from tests.engine.cache_rig import CACHE_S, STOP, Rig, document, request

LONG = document(0, 45)
"""Of eleven blocks of four tokens and one token more."""


def spans(plan: PassPlan) -> dict[str, tuple[int, int]]:
    """Of each request where its part begins and how long it is."""
    return {span.request: (span.start, len(span.tokens)) for span in plan.spans}


def test_the_same_prompt_again_reads_less_than_two_blocks_and_those_that_open_the_answer() -> None:
    rig = Rig()
    assert rig.run(request("a", LONG)) == [0]
    # 45 tokens less the eight that may open the answer, in whole blocks
    assert rig.run(request("b", LONG), request("c", LONG)) == [36, 36]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 40])
@pytest.mark.parametrize("most", [1, 2, 4, 5])
def test_a_follow_up_goes_on_behind_all_that_was_read_of_the_answer(length: int, most: int) -> None:
    rig = Rig()
    first = request("a", document(0, length), most=most)
    rig.run(first)
    read = length + most - 1
    assert rig.run(request("b", (*first.tokens, 8, 9))) == [read if read >= rig.page_tokens else 0]
    # and not where a token of it differs
    other = (*first.tokens[: read - 1], 3, *first.tokens[read:], 8, 9)
    assert rig.run(request("c", other))[0] < read


def test_followers_of_one_checkpoint_do_not_see_each_other() -> None:
    rig = Rig(num_slots=3)
    first = request("a", document(0, 9))
    rig.run(first)
    followers = [request(name, (*first.tokens, number, 7)) for number, name in enumerate("bcd")]
    for one in followers:
        rig.add(one)
    plan = rig.run_pass()
    # eleven tokens: the third page has three of them, and each follower its own copy of it
    assert spans(plan) == dict.fromkeys("bcd", (11, 3))
    (source,) = {source for source, _ in plan.upkeep.page_copies}
    assert sorted(target for _, target in plan.upkeep.page_copies) == sorted(
        span.pages[2] for span in plan.spans
    )
    assert all(source not in span.pages for span in plan.spans)
    assert len({span.pages[:2] for span in plan.spans}) == 1
    rig.run()


def test_one_follows_while_the_first_still_writes_its_answer() -> None:
    rig = Rig()
    rig.add(request("a", LONG, most=9))
    while not rig.requests["a"].answer:
        rig.run_pass()
    rig.add(request("b", (*LONG[:40], 3)))
    assert spans(rig.run_pass()) == {"a": (45, 1), "b": (36, 5)}
    rig.run()
    assert rig.requests["a"].finish is rig.requests["b"].finish is FinishReason.LENGTH


def test_tenants_share_nothing() -> None:
    rig = Rig(cached_slots=20)
    first = request("a", LONG)
    rig.run(first)
    for tenant in (None, "b"):
        assert rig.run(request(f"again {tenant}", first.tokens, tenant=tenant)) == [0]
    assert rig.run(request("own", (*first.tokens, 3))) == [47]


def test_what_two_prompts_begin_with_the_third_does_not_read() -> None:
    rig = Rig()
    system = document(0, 21)
    assert rig.run(request("a", (*system, 1, 2, 3))) == [0]
    # the second one stops at the last whole block in common
    rig.add(request("b", (*system, 3, 2, 1)))
    assert spans(rig.run_pass()) == {"b": (0, 20)}
    assert spans(rig.run_pass()) == {"b": (20, 4)}
    rig.run()
    assert rig.run(request("c", (*system, 9))) == [20]


@pytest.mark.parametrize(("length", "read"), [(40, {"b": (0, 32)}), (45, {})])
def test_what_a_pass_leaves_of_a_prompt_for_its_checkpoint_goes_to_one_that_could_end_in_it(
    length: int, read: dict[str, tuple[int, int]]
) -> None:
    rig = Rig(num_slots=2, pass_tokens=80)
    rig.add(request("a", LONG))
    rig.add(request("b", document(1, length)))
    assert spans(rig.run_pass()) == {"a": (0, 36), **read}
    rig.run()


def test_of_several_that_come_together_one_takes_the_checkpoint() -> None:
    rig = Rig(num_slots=4, pass_tokens=400)
    for number in range(4):
        rig.add(request(str(number), (*LONG[:30], number, 9)))
    # the first knows of no other, the second stops for the rest
    assert spans(rig.run_pass()) == {"0": (0, 32), "1": (0, 28), "2": (0, 32), "3": (0, 32)}
    rig.run()
    assert rig.run(request("later", (*LONG[:30], 7))) == [28]


def test_a_cancelled_request_is_gone_on_from_where_it_was() -> None:
    rig = Rig(pass_tokens=17)
    rig.add(request("a", LONG))
    plan = rig.run_pass()
    assert spans(plan) == {"a": (0, 17)}
    rig.planner.cancel("a")
    assert rig.run(request("b", LONG)) == [17]


def test_one_cancelled_during_a_pass_leaves_nothing() -> None:
    rig = Rig(pass_tokens=37, cached_slots=1)
    rig.add(request("a", LONG))
    plan = rig.schedule()
    assert len(plan.upkeep.saved) == 1
    rig.planner.cancel("a")
    rig.finish_pass(plan, {})
    assert rig.planner.holdings.checkpoints.all == []
    assert rig.planner.next_pass_s == float("-inf")
    rig.run_pass()
    rig.check_all_is_blank()
    assert rig.run(request("b", LONG)) == [0]


def test_a_state_that_cannot_be_trusted_goes_with_all_that_it_came_from() -> None:
    rig = Rig()
    first = request("a", LONG)
    rig.run(first)
    rig.add(request("b", (*first.tokens, 8)))
    rig.run_pass()
    rig.planner.fail("b")
    # what was taken of the first while it was read is older than the fault
    assert rig.run(request("c", (*first.tokens, 8))) == [36]
    rig.add(request("d", document(1, 45)))
    rig.run_pass()
    rig.planner.fail("d")
    assert rig.run(request("e", document(1, 45))) == [0]


def test_time_ends_what_nobody_used_and_wipes_it_though_nothing_runs() -> None:
    rig = Rig()
    rig.run(request("a", LONG))
    assert rig.planner.next_pass_s == CACHE_S
    rig.now_s = 9.0
    assert rig.run(request("b", (*LONG[:36], 3))) == [36]
    # what was used has its time again, the rest has not
    rig.now_s = CACHE_S
    rig.run_pass()
    assert sorted(one.position for one in rig.planner.holdings.checkpoints.all) == [36, 39]
    rig.now_s = 9.0 + CACHE_S
    plan = rig.run_pass()
    assert plan.spans == ()
    assert rig.planner.holdings.checkpoints.all == []
    rig.check_all_is_blank()
    assert rig.planner.next_pass_s == float("inf")


def test_a_conversation_that_ended_is_forgotten_and_its_running_jobs_are_not_kept() -> None:
    rig = Rig()
    rig.run(request("a", LONG, conversation="x"), request("b", document(1, 45), conversation="y"))
    rig.add(request("c", (*LONG, 7), conversation="x", most=9))
    rig.run_pass()
    before = rig.planner.holdings.checkpoints.all
    rig.planner.end_conversation("b", "x")
    assert rig.planner.holdings.checkpoints.all == before
    rig.planner.end_conversation("a", "x")
    rig.run()
    assert {kept for one in rig.planner.holdings.checkpoints.all for kept in one.conversations} == {"y"}
    assert rig.run(request("d", LONG, conversation="x")) == [0]


@pytest.mark.parametrize("num_pages", [200, 60])
def test_a_flood_of_one_tenant_leaves_another_its_conversation(num_pages: int) -> None:
    rig = Rig(num_pages=num_pages)
    first = request("b", document(0, 20), tenant="b")
    rig.run(first)
    for number in range(20):
        rig.run(request(str(number), document(number, 70), tenant="a"))
    assert rig.planner.holdings.evicted >= 10
    assert rig.run(request("c", (*first.tokens, 7), tenant="b")) == [22]


def test_what_two_conversations_left_stays_until_both_have_ended() -> None:
    rig = Rig()
    rig.run(request("a", document(0, 7), conversation="x"), request("b", document(0, 7), conversation="y"))
    for conversation, left in (("x", [9]), ("y", [])):
        rig.planner.end_conversation("a", conversation)
        assert [one.position for one in rig.planner.holdings.checkpoints.all] == left


def test_nothing_is_kept_where_the_time_is_0() -> None:
    rig = Rig(cache_s=0.0)
    first = request("a", LONG)
    rig.run(first)
    rig.check_all_is_blank()
    assert rig.run(request("b", (*first.tokens, 7))) == [0]


def test_without_room_for_two_the_follower_takes_the_checkpoint_itself() -> None:
    rig = Rig(num_slots=1, cached_slots=0)
    first = request("a", document(0, 9))
    rig.run(first)
    rig.add(request("b", (*first.tokens, 7)))
    plan = rig.run_pass()
    assert spans(plan) == {"b": (11, 2)}
    assert plan.upkeep.restored == plan.upkeep.page_copies == ()
    assert rig.planner.holdings.checkpoints.all == []
    rig.run()
    # another one beside it finds it gone, and its own room wiped
    assert rig.run(request("c", (*first.tokens, 6))) == [0]


def test_without_pages_for_two_the_follower_takes_the_last_page_too() -> None:
    rig = Rig(num_slots=2, cached_slots=4, num_pages=4)
    first = request("a", document(0, 9))
    rig.run(first)
    # 16 tokens: all four pages, with that of the eleventh token among them
    rig.add(request("b", (*first.tokens, 7), most=3))
    plan = rig.run_pass()
    assert spans(plan) == {"b": (11, 2)}
    assert plan.upkeep.page_copies == ()
    rig.run()


def test_a_second_follower_waits_where_only_taking_the_checkpoint_would_make_room() -> None:
    rig = Rig(num_slots=2, cached_slots=0, num_pages=50)
    first = request("a", document(0, 9))
    rig.run(first)
    followers = [request(name, (*first.tokens, number)) for number, name in enumerate("bc")]
    for one in followers:
        rig.add(one)
    # the first one copies: the slot that is left belongs to the checkpoint, which is being copied from
    assert spans(rig.run_pass()) == {"b": (11, 2)}
    assert followers[1].state is RequestState.WAITING
    assert spans(rig.run_pass())["c"] == (11, 2)
    rig.run()


def test_a_request_that_needs_the_room_gets_it_from_the_least_useful() -> None:
    rig = Rig(num_slots=1, cached_slots=2, num_pages=40)
    rig.run(request("long", LONG))
    rig.run(request("short", document(1, 8)))
    kept = rig.planner.holdings
    assert sorted(one.position for one in kept.checkpoints.all) == [10, 36, 47]
    rig.run(request("other", document(2, 8)))
    assert sorted(one.position for one in kept.checkpoints.all) == [10, 36, 47]
    assert kept.evicted == 1
    # all pages: everything else leaves
    rig.add(request("all", document(3, 150), most=10))
    assert "all" in spans(rig.run_pass())
    assert kept.evicted == 4
    assert [one.position for one in kept.checkpoints.all] == [64]
    rig.run()


def test_a_request_that_does_not_fit_makes_nobody_leave() -> None:
    rig = Rig(num_slots=2, num_pages=30)
    rig.run(request("a", LONG))
    rig.add(request("running", document(1, 40), most=20))
    rig.run_pass()
    before = len(rig.planner.holdings.checkpoints.all)
    rig.add(request("too large", document(2, 70), most=1))
    assert "too large" not in spans(rig.run_pass())
    assert len(rig.planner.holdings.checkpoints.all) >= before
    rig.run()
    assert rig.requests["too large"].finish is FinishReason.LENGTH


def test_a_checkpoint_that_left_is_taken_again() -> None:
    rig = Rig(num_slots=1, cached_slots=1, num_pages=40)
    assert rig.run(request("a", LONG)) == [0]
    rig.run(request("all", document(3, 150), most=10))
    assert rig.run(request("b", LONG)) == [0]
    # all of its whole blocks this time: they had been seen before
    assert rig.run(request("c", LONG)) == [44]


def test_an_answer_that_ends_inside_a_draft_is_gone_on_from_at_its_end() -> None:
    rig = Rig()
    first = rig.add(request("a", document(0, 9), most=9))
    rig.run_pass()
    plan = rig.schedule({"a": (20, 21, 22)})
    rig.finish_pass(plan, {"a": (20, STOP)})
    assert rig.run(request("b", (*first.tokens, 7, 8))) == [len(first.tokens) - 1]


def test_late_counts_what_is_cached() -> None:
    rig = Rig(pass_tokens=8)
    rig.run(request("a", LONG))
    one = rig.add(request("b", LONG))
    one.deadline_s = 4.0
    # five full passes without the cache, one with it
    assert rig.planner.late(0.0, 1.0) == []
    assert rig.planner.late(3.0, 1.0) == ["b"]


def test_classes_do_not_matter_to_what_is_shared() -> None:
    rig = Rig()
    rig.run(request("a", LONG, priority=PriorityClass.P3))
    assert rig.run(request("b", LONG, priority=PriorityClass.P0)) == [36]

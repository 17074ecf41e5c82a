"""A tenant that sends many stands behind itself, and one that comes later is served in its turn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.request import Request
from sparkle.engine.rounds import Rounds
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass

P1, P2 = PriorityClass.P1, PriorityClass.P2


def request(tenant: str, number: int = 0, priority: PriorityClass = P1) -> Request:
    return Request(
        id=f"{tenant} {number}",
        prompt=(7,) * 9,
        max_answer_tokens=1,
        stop_tokens=frozenset(),
        priority=priority,
        arrived_s=0.0,
        tenant=tenant,
    )


def joined(rounds: Rounds, tenant: str, priority: PriorityClass = P1) -> Request:
    made = request(tenant, priority=priority)
    rounds.join(made)
    return made


def test_each_tenant_has_one_request_a_round_in_each_class() -> None:
    rounds = Rounds()
    assert [joined(rounds, tenant).round for tenant in ("a", "a", "b", "a", "b")] == [0, 1, 0, 2, 1]
    assert joined(rounds, "a", P2).round == 0


def test_who_comes_late_joins_the_round_being_served_and_saves_none_up() -> None:
    rounds = Rounds()
    flood = [joined(rounds, "a") for _ in range(6)]
    for one in flood[:4]:
        rounds.was_read(one)
    assert [joined(rounds, "b").round for _ in range(2)] == [3, 4]
    # read out of order, a round that is over stays over
    rounds.was_read(flood[5])
    rounds.was_read(flood[4])
    assert joined(rounds, "c").round == 5
    assert joined(rounds, "a").round == 6


@settings(max_examples=40, deadline=None)
@given(
    slots=st.integers(1, 8),
    pass_tokens=st.integers(10, 40),
    flood=st.integers(1, 30),
    passes_before=st.integers(0, 20),
    late=st.integers(1, 5),
)
def test_a_flood_of_one_tenants_prompts_lets_anothers_in_one_by_one(
    slots: int, pass_tokens: int, flood: int, passes_before: int, late: int
) -> None:
    """Whether they wait for slots or for rows."""
    planner = Scheduler(
        num_slots=slots, num_pages=100, page_tokens=10, pass_tokens=pass_tokens, chunk_tokens=pass_tokens
    )
    read: list[str] = []

    def run_pass() -> None:
        plan = planner.schedule(0.0)
        drawing = [span.request for span in plan.spans if span.draws]
        planner.apply(PassResult(drawn=tuple(Drawn(request=name, token=5) for name in drawing)))
        planner.check_integrity()
        read.extend(drawing)

    for number in range(flood):
        planner.add(request("a", number))
    for _ in range(passes_before):
        run_pass()
    before = len(read)
    for number in range(late):
        planner.add(request("b", number))
    while planner.has_work:
        run_pass()
    after = read[before:]
    assert len(read) == flood + late
    for number in range(late):
        # one of theirs a round, besides those that were begun, or hold the slots, when it came
        ahead = after[: after.index(f"b {number}")]
        assert sum(name.startswith("a") for name in ahead) <= number + 1 + slots

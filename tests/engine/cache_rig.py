"""A scheduler with a prefix cache, and slots and pages that remember what its passes leave in them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkle.engine.plan import Drawn, PassPlan, PassResult
from sparkle.engine.request import Request
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass
from tests.engine.remembering_pool import RememberingPool

STOP = 1
CACHE_S = 10.0


def request(
    name: str,
    prompt: tuple[int, ...],
    *,
    most: int = 3,
    tenant: str | None = "a",
    conversation: str | None = None,
    priority: PriorityClass = PriorityClass.P1,
    arrived_s: float = 0.0,
) -> Request:
    return Request(
        id=name,
        prompt=prompt,
        max_answer_tokens=most,
        stop_tokens=frozenset({STOP}),
        priority=priority,
        arrived_s=arrived_s,
        tenant=tenant,
        conversation=conversation,
    )


def document(kind: int, length: int, ending: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Documents of one kind begin alike."""
    return tuple(10 + (place * (kind + 2)) % 50 for place in range(length)) + ending


class Rig:
    """A scheduler and what its plans are done to."""

    def __init__(
        self,
        *,
        num_slots: int = 2,
        cached_slots: int = 4,
        num_pages: int = 200,
        page_tokens: int = 4,
        pass_tokens: int = 64,
        cache_s: float = CACHE_S,
    ) -> None:
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        self.planner = Scheduler(
            num_slots=num_slots,
            num_pages=num_pages,
            page_tokens=page_tokens,
            pass_tokens=pass_tokens,
            chunk_tokens=pass_tokens,
            cached_slots=cached_slots,
            cache_s=cache_s,
        )
        self.pool = RememberingPool(
            num_slots=num_slots + cached_slots, num_pages=num_pages, page_tokens=page_tokens
        )
        self.requests: dict[str, Request] = {}
        self.now_s = 0.0
        self.cached: dict[str, int] = {}
        """Of each request that began: tokens that it did not read."""

    def add(self, one: Request) -> Request:
        self.requests[one.id] = one
        self.planner.add(one)
        return one

    def schedule(self, drafts: Mapping[str, tuple[int, ...]] | None = None) -> PassPlan:
        def chosen(rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
            return {name: (drafts or {}).get(name, ())[:room] for name, room in rooms.items()}

        plan = self.planner.schedule(self.now_s, chosen)
        for span in plan.spans:
            if span.fresh:
                assert span.request not in self.cached or self.requests[span.request].preemptions
                self.cached.setdefault(span.request, span.start)
        return plan

    def finish_pass(self, plan: PassPlan, tokens: Mapping[str, tuple[int, ...]]) -> None:
        """Run it; each request that draws gets these tokens, of which the last one has no row yet."""
        drawn = {span.request: tokens[span.request] for span in plan.spans if span.draws}
        kept = {
            span.request: len(span.tokens) - len(span.draft) + len(drawn.get(span.request, (0,))) - 1
            for span in plan.spans
        }
        self.pool.run(plan, self.requests, kept)
        self.planner.apply(
            PassResult(
                drawn=tuple(Drawn(request=name, token=token) for name, row in drawn.items() for token in row)
            )
        )
        self.planner.check_integrity()

    def run_pass(self, token: int = 5) -> PassPlan:
        plan = self.schedule()
        self.finish_pass(plan, dict.fromkeys(self.requests, (token,)))
        return plan

    def run(self, *added: Request, token: int = 5) -> list[int]:
        """Until nothing is left; of each that was added the tokens that it did not read."""
        for one in added:
            self.add(one)
        while self.planner.has_work:
            self.run_pass(token)
        self.run_pass()
        return [self.cached[one.id] for one in added]

    def check_all_is_blank(self) -> None:
        self.pool.check_blank(range(len(self.pool.states)), range(self.num_pages))

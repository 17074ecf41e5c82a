"""Orders through the queue: set aside, submitted, watched, left. Knows no HTTP and no answer's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager

from sparkle.errors import PublishUncertain, QueueFull
from sparkle.producers.dispatcher import Dispatcher
from sparkle.producers.gateway.access import Access, Principal, Reservation
from sparkle.producers.gateway.asked import Order
from sparkle.producers.gateway.metrics import GatewayMetrics
from sparkle.producers.handle import Handle
from sparkle.producers.running import abandon


class Desk:
    """All answers under way in this gateway."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        access: Access,
        metrics: GatewayMetrics,
        *,
        max_open: int,
        accept_timeout_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._access = access
        self._metrics = metrics
        self._max_open = max_open
        self._accept_timeout_s = accept_timeout_s
        self._num_open = 0
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def taken(self, principal: Principal, orders: Sequence[Order]) -> AsyncGenerator[list[Handle]]:
        """The orders' handles, in their order, once the queue holds them all.

        Whatever is not answered at the end of the block is cancelled. Raises AccessError, QueueError,
        MessageTooLarge.
        """
        if self._num_open + len(orders) > self._max_open:
            raise QueueFull(f"{self._num_open} answers are under way here, at most {self._max_open} may be")
        self._count(len(orders))
        try:
            reservation = await self._access.reserve(
                principal, {order.job.id: order.most_tokens for order in orders}
            )
        except BaseException:
            self._count(-len(orders))
            raise
        handles: dict[str, Handle] = {}
        try:
            await self._submit(orders, handles)
            yield [handles[order.job.id] for order in orders]
        finally:
            for order in orders:
                self._spawn(self._leave(order.job.id, handles.get(order.job.id), reservation))

    async def close(self) -> None:
        """Wait until the queue has been told of everything that is not wanted any more."""
        await asyncio.gather(*self._leaving)

    async def _submit(self, orders: Sequence[Order], handles: dict[str, Handle]) -> None:
        """Fill `handles` as far as the queue takes them. Raises the first refusal."""

        async def submit(order: Order) -> None:
            tenant = order.job.tenant
            assert tenant is not None, "an order names its tenant"
            handles[order.job.id] = await self._dispatcher.dispatch(order.job, tenant, order.priority)

        try:
            async with asyncio.timeout(self._accept_timeout_s):
                # one after the other would add up: several choices go at once
                if len(orders) == 1:
                    await submit(orders[0])
                else:
                    await _all([submit(order) for order in orders])
        except TimeoutError:
            late = f"the queue did not take the job within {self._accept_timeout_s:g} s; try again"
            raise PublishUncertain(late) from None

    async def _leave(self, job: str, handle: Handle | None, reservation: Reservation) -> None:
        if handle is not None:
            await abandon(handle)
        await reservation.ended(job, accepted=handle is not None)
        self._count(-1)

    def _count(self, more: int) -> None:
        self._num_open += more
        self._metrics.open.set(self._num_open)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        # a task of its own: whoever asked may be gone, and must not cut it off
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _all(works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run them side by side; the first error, when all have ended."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome

"""One endpoint as an ASGI application: first the key, then the request, then its answer. Knows no request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparkle.errors import SparkleError
from sparkle.producers.gateway.access import Access, Principal
from sparkle.producers.gateway.body import BodyBudget, Held
from sparkle.producers.gateway.event_stream import ClientGone
from sparkle.producers.gateway.faults import ApiFault, from_error, unsupported
from sparkle.producers.gateway.metrics import GatewayMetrics

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""What nginx counts as well; nobody is there to read it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request of somebody who may ask."""

    request: Request
    principal: Principal
    held: Held


_FAULT_OF_OURS = ApiFault(500, "internal_error", "a fault in the program")

Answer = Callable[[Call], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class Door:
    """What every endpoint with a key needs."""

    access: Access
    region: str
    budget: BodyBudget
    metrics: GatewayMetrics


class Endpoint:
    """A path's application."""

    def __init__(self, name: str, door: Door, answer: Answer, query: Collection[str] = ()) -> None:
        """`name` is what metrics and log call it; `query` has the parameters that it reads."""
        self._name = name
        self._door = door
        self._answer = answer
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what goes wrong is an answer as well."""
        status: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            await send(message)

        try:
            await self._respond(scope, receive, watched)
        except ClientGone:
            self._door.metrics.disconnects.inc()
            status.append(CLIENT_GONE)
        except ApiFault as fault:
            await fault_response(fault)(scope, receive, watched)
        except SparkleError as error:
            await fault_response(from_error(error))(scope, receive, watched)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # its text may hold content: the kind and our own name for the place
            log.error("request_failed", extra={"endpoint": self._name, "error": type(error).__name__})
            if status:
                raise
            await fault_response(_FAULT_OF_OURS)(scope, receive, watched)
        finally:
            self._door.metrics.requests.labels(self._name, str(status[-1]) if status else "none").inc()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        principal = await self._door.access.authenticate(bearer_key(request))
        if principal.region != self._door.region:
            message = f"this key is for region {principal.region}, this gateway for {self._door.region}"
            raise ApiFault(403, "wrong_region", message)
        for name in request.query_params:
            if name not in self._query:
                raise unsupported(name)
        async with self._door.budget.held() as held:
            answer = await self._answer(Call(request, principal, held))
            await answer(scope, receive, send)


def bearer_key(request: Request) -> str | None:
    """The key in the request's head."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def fault_response(fault: ApiFault) -> Response:
    """A fault as an answer."""
    return JSONResponse(fault.body(), status_code=fault.status, headers=dict(fault.headers))

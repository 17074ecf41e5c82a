"""A gateway in the test's own loop on a port of the system's choice, and OpenAI's client to ask it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from openai import AsyncOpenAI

from sparkle.producers.gateway.access import Access, OpenAccess
from sparkle.producers.gateway.app import Gateway
from sparkle.producers.gateway.serve import Listening, opened
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.settings import ClientSettings

REGION = "local"
TENANT = "acme"


@dataclass(frozen=True, slots=True)
class GatewayAtWork:
    """A gateway that listens."""

    gateway: Gateway
    port: int

    @property
    def url(self) -> str:
        """Its root."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "any", **named: object) -> AsyncOpenAI:
        """OpenAI's client. It tries once: a test wants to see what fails."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **named)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def metric(self, name: str, **labels: str) -> float:
        """The value of one metric; 0 where nothing was counted."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def gateway_at_work(
    nats_url: str, *, access: Access | None = None, models: str = "stand-in", **settings: object
) -> AsyncGenerator[GatewayAtWork]:
    """A gateway without keys, unless `access` says who may ask; it knows its one model from the start."""
    client = ClientSettings(nats=nats_url, region=REGION, tenant=TENANT)
    chosen = dataclasses.replace(GatewaySettings(port=0, models=models, drain_s=1.0), **settings)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with opened(client) as bus:
        allowed = access or OpenAccess(tenant=TENANT, region=REGION)
        gateway = Gateway(bus, allowed, chosen, client)
        async with Listening(gateway, chosen) as listening:
            yield GatewayAtWork(gateway, listening.port)

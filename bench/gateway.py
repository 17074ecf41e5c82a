"""What the HTTP gateway adds to the queue, with keys and without, the streams it keeps up, whether it grows.

nats-server, gateway and a worker without a model are processes of their own; this one is the clients.
Run from the repository's root: python -m bench.gateway
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from bench.http_client import HttpClient, Streamed
from bench.paced_worker import REGION
from bench.record import record
from sparkle.producers.client import Client
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology, usage_streams
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.key_values import KeyValues
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from sparkle.schemas.job import Job

PROMPT = "word " * 400
QUEUE, GATEWAYS = "queue", ("gateway_added", "gateway_keyed_added")
"""Ways to the worker; of gateways the one without keys and the one with them."""
P50_LIMIT_MS, P99_LIMIT_MS = 3.0, 10.0
STREAMS, TOKENS_PER_S, STREAM_S = 200, 50, 20
BEHIND_S = 1.0
"""A stream with a token that comes so long after it was due has fallen behind."""

GROWTH_LIMIT_MB = 20.0
AT_ONCE = 16
PLENTY_TOKENS = 10**12
START_S, LOOK_S = 60.0, 0.05


@dataclass(frozen=True, slots=True)
class Service:
    """What answers: a gateway and its queue."""

    nats: str
    url: str
    gateway: psutil.Process
    key: str | None


@contextlib.asynccontextmanager
async def process(*command: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A program of ours, killed at the end."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        started.kill()
        await started.communicate()


@contextlib.asynccontextmanager
async def worker(pace_ms: float, *, metered: bool = False) -> AsyncGenerator[LocalServer]:
    """A queue with a worker of this pace."""
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        await connection.close()
        command = ("bench.paced_worker", "--nats", server.url, "--pace-ms", str(pace_ms))
        async with process(*command, *(["--metered"] if metered else [])):
            yield server


@contextlib.asynccontextmanager
async def gateway(server: LocalServer, key: str | None = None) -> AsyncGenerator[Service]:
    """A gateway that answers: with a key, to that one alone."""
    guard = ["--no-keys"] if key is None else ["--meter-nats", server.meter_url]
    command = ("sparkle.cli", "gateway", "--port", "0", "--region", REGION, "--nats", server.url)
    async with process(*command, *guard) as running:
        assert running.stdout is not None
        url = (await running.stdout.readline()).decode().split()[-1]
        async with asyncio.timeout(START_S):
            await answering(url, key)
        yield Service(server.url, url, psutil.Process(running.pid), key)


@contextlib.asynccontextmanager
async def service(pace_ms: float) -> AsyncGenerator[Service]:
    """A queue, a worker of this pace and a gateway without keys."""
    async with worker(pace_ms) as server, gateway(server) as there:
        yield there


async def new_key(server: LocalServer) -> str:
    """Of the server's one tenant, which can ask for as much as it likes."""
    meter = await Connection.open(ConnectionSettings(url=server.meter_url, name="bench"))
    await usage_streams.declare(meter, UsageSettings())
    tenant = Tenant(name="acme", region=REGION, allowance_tokens=PLENTY_TOKENS)
    key = await TenantBook(KeyValues(meter, BUCKET)).add(tenant, now_ms=0)
    await meter.close()
    return key


async def answering(url: str, key: str | None) -> None:
    """Until the gateway answers: it knows the worker from that one's next sign of life on."""
    while True:
        client = await HttpClient.open(url, key)
        try:
            await client.whole("x", 1)
        except RuntimeError:
            await asyncio.sleep(LOOK_S)
        else:
            return
        finally:
            client.close()


async def by_gateway(http: HttpClient) -> float:
    """Milliseconds to the first token."""
    began_s = asyncio.get_running_loop().time()
    return ((await http.stream(PROMPT, 3)).first_s - began_s) * 1000


async def by_queue(client: Client) -> float:
    """The same straight from the queue."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    handle = await client.submit(Job(prompt=PROMPT, max_tokens=3))
    await anext(handle)
    first_ms = (loop.time() - began_s) * 1000
    await handle.result()
    return first_ms


async def first_tokens(rounds: int, requests: int) -> dict[str, list[list[float]]]:
    """Milliseconds to the first token by round, of each way: QUEUE alone and both GATEWAYS."""
    async with worker(pace_ms=1.0, metered=True) as server:
        key = await new_key(server)
        async with gateway(server) as without, gateway(server, key) as keyed:
            client = await Client.open(ClientSettings(nats=server.url, region=REGION))
            clients = [await HttpClient.open(there.url, there.key) for there in (without, keyed)]
            ways: dict[str, Callable[[], Awaitable[float]]] = {
                QUEUE: partial(by_queue, client),
                **{name: partial(by_gateway, http) for name, http in zip(GATEWAYS, clients, strict=True)},
            }
            shuffled = random.Random(0)
            took: dict[str, list[list[float]]] = {name: [] for name in ways}
            for _ in range(1 + rounds):
                for taken in took.values():
                    taken.append([])
                # by turns, so that all meet the same machine, and each of them every other one's traces
                for _ in range(requests):
                    for name in shuffled.sample([*ways], len(ways)):
                        took[name][-1].append(await ways[name]())
            for http in clients:
                http.close()
            await client.close()
    return {name: taken[1:] for name, taken in took.items()}


async def streams_kept_up(streams: int) -> tuple[int, float, float]:
    """How many did, the longest that a token came late in seconds, and the gateway's share of a core."""
    count = TOKENS_PER_S * STREAM_S
    async with service(pace_ms=1000 / TOKENS_PER_S) as there:
        clients = [await HttpClient.open(there.url) for _ in range(streams)]
        before = there.gateway.cpu_times()
        answers: list[Streamed] = await asyncio.gather(
            *(client.stream("x", count, pace_s=1 / TOKENS_PER_S) for client in clients)
        )
        after = there.gateway.cpu_times()
        for client in clients:
            client.close()
    kept_up = sum(answer.num_tokens == count and answer.late_s <= BEHIND_S for answer in answers)
    used_s = after.user + after.system - before.user - before.system
    return kept_up, max(answer.late_s for answer in answers), used_s / STREAM_S


async def memory_growth(requests: int) -> tuple[float, float]:
    """MB that the gateway grew by after the first tenth of the requests, and requests a second."""
    loop = asyncio.get_running_loop()
    async with service(pace_ms=0.0) as there:
        clients = [await HttpClient.open(there.url) for _ in range(AT_ONCE)]

        async def ask(client: HttpClient, count: int) -> None:
            for number in range(count):
                # every second one as a stream
                await (client.stream if number % 2 else client.whole)(PROMPT, 4)

        async def run(count: int) -> None:
            await asyncio.gather(*(ask(client, count // AT_ONCE) for client in clients))

        await run(requests // 10)
        before = there.gateway.memory_info().rss
        began_s = loop.time()
        await run(requests - requests // 10)
        took_s = loop.time() - began_s
        grown = (there.gateway.memory_info().rss - before) / 1e6
        for client in clients:
            client.close()
    return grown, (requests - requests // 10) / took_s


async def measure_added(arguments: argparse.Namespace) -> list[str]:
    """Print and record what it adds, without keys and with them; what is over its limit."""
    took = await first_tokens(arguments.rounds, arguments.requests)
    return [
        line for way in GATEWAYS for line in _added(way, took[way], took[QUEUE], record_it=arguments.record)
    ]


def _added(way: str, gateway: list[list[float]], queue: list[list[float]], *, record_it: bool) -> list[str]:
    over: list[str] = []
    for share, limit in ((50, P50_LIMIT_MS), (99, P99_LIMIT_MS)):
        by_round = [
            _percentile(ours, share) - _percentile(alone, share)
            for ours, alone in zip(gateway, queue, strict=True)
        ]
        # of all rounds together: the slowest hundredth of one round is two requests
        http, bus = (
            _percentile([one for each in one_way for one in each], share) for one_way in (gateway, queue)
        )
        added, spread = http - bus, (min(by_round), max(by_round))
        beside = f"{spread[0]:.2f} to {spread[1]:.2f} by round; the queue alone {bus:.2f}"
        print(f"{way} at p{share}: {added:.2f} ms, {beside}")
        if record_it:
            record(f"{way}_ms_p{share}", added, "ms", 0.0, spread, file="gateway")
        if added > limit:
            over.append(f"{way} at p{share} {added:.2f} ms, not {limit}")
    return over


async def measure_streams(arguments: argparse.Namespace) -> list[str]:
    """Print and record how many streams it keeps up; whether that is not all."""
    kept_up, late_s, cores = await streams_kept_up(arguments.streams)
    print(f"streams kept up: {kept_up} of {arguments.streams}; latest {late_s:.2f} s; {cores:.2f} of a core")
    if arguments.record:
        spread = (float(kept_up), float(kept_up))
        record(
            "gateway_streams_kept_up", kept_up, "streams", float(arguments.streams), spread, file="gateway"
        )
    return [] if kept_up == arguments.streams else [f"{kept_up} streams, not {arguments.streams}"]


async def measure_memory(arguments: argparse.Namespace) -> list[str]:
    """Print and record how its memory grows; whether that is too much."""
    grown, rate = await memory_growth(arguments.total)
    print(f"memory grew by {grown:.1f} MB over {arguments.total} requests, {rate:.0f} a second")
    if arguments.record:
        record("gateway_memory_growth_mb", grown, "MB", 0.0, (grown, grown), file="gateway")
    return [] if grown <= GROWTH_LIMIT_MB else [f"{grown:.1f} MB, not {GROWTH_LIMIT_MB}"]


PARTS: dict[str, Callable[[argparse.Namespace], Coroutine[None, None, list[str]]]] = {
    "added": measure_added,
    "streams": measure_streams,
    "memory": measure_memory,
}


def main() -> None:
    """Measure, print, append the rows; exit 1 when a figure is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS), help="by default all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=200, help="requests a round")
    parser.add_argument("--streams", type=int, default=STREAMS, help="streams at once")
    parser.add_argument("--total", type=int, default=100_000, help="requests that memory is watched over")
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    arguments = parser.parse_args()
    over = [line for part in arguments.parts for line in asyncio.run(PARTS[part](arguments))]
    if over:
        raise SystemExit(f"over their limits: {'; '.join(over)}")


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100)[share - 1]


if __name__ == "__main__":
    main()

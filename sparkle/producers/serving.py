"""Runs a local service until it is told to end. Knows no flags and no job."""

from __future__ import annotations

from rich.console import Console

from sparkle.producers.local_service import LocalService, LocalServiceSettings


async def run_service(settings: LocalServiceSettings, console: Console) -> int:
    """Start it, tell how to use it, wait. Ends only by being cancelled.

    Raises what `LocalService` raises, EngineExited when the worker ends.
    """
    async with LocalService(settings, lambda stage: console.print(f"· {stage}")) as service:
        console.print(f"\nready. In another terminal:\n\n{_how_to_ask(service.url, settings.region)}\n")
        console.print("Ctrl-C ends worker and server.")
        await service.until_worker_exits()
    raise AssertionError("a worker that exits is an error")


def _how_to_ask(url: str, region: str) -> str:
    where = f"--nats {url} --region {region}"
    lines = [
        f'  sparkle ask "Is 203.0.113.9 scanning us?" {where}',
        f"  sparkle status {where} --watch",
    ]
    return "\n".join(lines)

"""Runs a local service until it is told to end. Knows no flags and no job."""

from __future__ import annotations

from rich.console import Console

from sparkle.producers.local_service import LocalService, LocalServiceSettings
from sparkle.producers.settings import ClientSettings


async def run_service(settings: LocalServiceSettings, console: Console) -> int:
    """Start it, tell how to use it, wait. Ends only by being cancelled.

    Raises what `LocalService` raises, EngineExited when the worker ends, NotConnected when the server does.
    """
    async with LocalService(settings, lambda stage: console.print(f"· {stage}")) as service:
        hint = how_to_ask(service.url, settings.region)
        console.print(f"\nready. In another terminal:\n\n{hint}\n", soft_wrap=True)
        console.print("Ctrl-C ends worker and server.")
        await service.until_a_part_exits()
    raise AssertionError("a part that exits is an error")


def how_to_ask(url: str, region: str) -> str:
    """The commands for this service, with the flags that differ from the defaults of `ClientSettings`."""
    usual = ClientSettings()
    where = "" if url == usual.nats else f" --nats {url}"
    where += "" if region == usual.region else f" --region {region}"
    return f'  sparkle ask "What is lateral movement?"{where}\n  sparkle status --watch{where}'

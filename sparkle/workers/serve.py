"""One worker in this process: settings from file, environment and flags; signals; the log. Knows no job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import typer

from sparkle.config import load
from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import EngineSettings, default_model, require_checkpoint
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.key_ring import EncryptionSettings
from sparkle.quiet.process import keep_content_in
from sparkle.workers.assembly import run_worker
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.settings import WorkerSettings


def serve(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    flags: Mapping[str, object],
    engine_flags: Mapping[str, object],
) -> None:
    """Be a worker until a signal ends it. Raises what `config.load` and `run_worker` raise."""
    bus = load(BusAccess, "bus", file=file, environ=environ, flags={})
    encryption = load(EncryptionSettings, "encryption", file=file, environ=environ, flags={})
    flags = {**flags, "bus": bus, "encryption": encryption}
    settings = load(WorkerSettings, "worker", file=file, environ=environ, flags=flags)
    engine_settings = load(EngineSettings, "engine", file=file, environ=environ, flags=engine_flags)
    model = settings.model or default_model()
    require_checkpoint(model)
    keep_content_in(settings.log_level.number)
    asyncio.run(_until_ended(settings, EngineProcess(model, engine_settings)))


async def _until_ended(settings: WorkerSettings, engine: EngineProcess) -> None:
    life = LifeCycle()
    life.watch_signals(asyncio.get_running_loop())
    await run_worker(settings, engine, life, typer.echo)

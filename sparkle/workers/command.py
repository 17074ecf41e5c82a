"""The command `sparkle worker`: settings, signals and exit codes around one worker. Knows no job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sparkle import config
from sparkle.errors import ConfigError, SparkleError
from sparkle.workers.lifecycle import LifeCycle, exit_code
from sparkle.workers.settings import WorkerSettings


def worker(
    context: typer.Context,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take jobs of this region. There is no default.")
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the queue is. Default: nats://127.0.0.1:4222"),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The checkpoint's directory. Default: the bundled sparkle-tiny."),
    ] = None,
    slots: Annotated[int | None, typer.Option(metavar="N", help="Jobs to run at once. Default: 8")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="This worker's name. Default: host name and chance.")
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long running jobs may take to finish. Default: 300"),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="Serve Prometheus metrics on 127.0.0.1; 0 takes a free port."),
    ] = None,
) -> None:
    """Take jobs from the queue and answer them with one model, until told to end.

    The first SIGTERM or SIGINT drains: no new job is taken, running ones finish, the exit code is 0. A second
    one hands running jobs back to the queue at once.

    Exit codes: 0 told to end, 2 settings or model cannot be used, 3 the engine process ended, 4 the queue
    cannot be reached, 5 the streams are not declared (`sparkle topology apply`).

    Every setting can also stand in `[worker]` and `[engine]` of `sparkle --config FILE`, or in the
    environment as SPARKLE_WORKER_REGION, SPARKLE_ENGINE_SLOTS and so on.
    """
    flags = {
        "region": region,
        "nats": nats,
        "model": model,
        "name": name,
        "drain_s": drain_s,
        "metrics_port": metrics_port,
    }
    file: Path | None = getattr(context.obj, "config", None)
    try:
        settings = config.load(WorkerSettings, "worker", file=file, environ=config.environment(), flags=flags)
        _serve(settings, file, slots)
    except SparkleError as error:
        typer.echo(f"sparkle worker: {error}", err=True)
        raise typer.Exit(exit_code(error)) from None


def _serve(settings: WorkerSettings, file: Path | None, slots: int | None) -> None:
    """Run one worker in an event loop of its own. Raises what `run_worker` raises."""
    try:
        # a producer's install has the command but not these
        from sparkle.engine.client import EngineProcess
        from sparkle.engine.logs import log_to_stderr
        from sparkle.engine.settings import EngineSettings, default_model
        from sparkle.workers.assembly import run_worker
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; `pip install 'sparkle-inference[worker]'` brings it"
        ) from None
    engine_settings = config.load(
        EngineSettings, "engine", file=file, environ=config.environment(), flags={"slots": slots}
    )
    model = settings.model or default_model()
    if not (model / "config.json").is_file():
        raise ConfigError(f"model {model} is no checkpoint: it has no config.json")
    log_to_stderr()

    async def serve() -> None:
        life = LifeCycle()
        life.watch_signals(asyncio.get_running_loop())
        await run_worker(settings, EngineProcess(model, engine_settings), life)

    asyncio.run(serve())

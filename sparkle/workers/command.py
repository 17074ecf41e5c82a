"""The command `sparkle worker`: flags in, one sentence and an exit code out. Knows no worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sparkle.config import environment
from sparkle.errors import ConfigError, SparkleError


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
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, cpu or cuda: the H200. Default: auto")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(metavar="N", help="Jobs to run at once. Default: 8 on the CPU, 64 on an H200"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="This worker's name. Default: host name and chance.")
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long running jobs may take to finish before they are handed over. Default: 0",
        ),
    ] = None,
    metered: Annotated[
        bool | None,
        typer.Option("--metered", help="End a job only once its usage record is stored.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="Serve Prometheus metrics on 127.0.0.1; 0 takes a free port."),
    ] = None,
) -> None:
    """Take jobs from the queue and answer them with one model, until told to end.

    Example:

        sparkle worker --region eu --nats nats://queue.example:4222 --model /models/qwen --metrics-port 9100

    SIGTERM, SIGINT and `sparkle worker drain NAME` end it: no new job is taken, running ones go to other
    workers within a second, which go on at the next token; the exit code is 0. With --drain-s they may finish
    here first, until a second signal comes.

    Exit codes: 0 told to end, 2 settings or model cannot be used, 3 the engine process ended and could not be
    started again, 4 the queue cannot be reached, 5 the streams are not declared (`sparkle topology apply`).

    These and all others can also stand in the tables `worker` and `engine` of `sparkle --config FILE`, or in
    the environment as SPARKLE_WORKER_REGION, SPARKLE_ENGINE_CACHE_S and so on; docs/settings.md has them.
    """
    flags = {
        "region": region,
        "nats": nats,
        "model": model,
        "name": name,
        "drain_s": drain_s,
        "metered": metered,
        "metrics_port": metrics_port,
    }
    if context.invoked_subcommand is not None:
        return
    # only here is loaded what a worker needs, and a producer's install has not
    from sparkle.workers.lifecycle import exit_code

    try:
        _serve(getattr(context.obj, "config", None), flags, {"device": device, "slots": slots})
    except SparkleError as error:
        typer.echo(f"sparkle worker: {error}", err=True)
        raise typer.Exit(exit_code(error)) from None


def _serve(file: Path | None, flags: Mapping[str, object], engine_flags: Mapping[str, object]) -> None:
    """Be a worker. Raises ConfigError without the extra `worker`, else what `serve` raises."""
    try:
        from sparkle.workers.serve import serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; `pip install 'sparkle-inference[worker]'` brings it"
        ) from None
    serve(file, environment(), flags=flags, engine_flags=engine_flags)

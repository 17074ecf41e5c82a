"""`sparkle up`: its flags and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkle.producers.commands.options import config_of


def up(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where nats-server listens on 127.0.0.1; 0 takes a free port."),
    ] = 4222,
    region: Annotated[str, typer.Option(metavar="NAME", help="The region to serve.")] = "local",
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The checkpoint's directory. Default: the bundled sparkle-tiny."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Keep tenants, keys and usage here for next time."),
    ] = None,
) -> None:
    """Run a whole service on this machine: a nats-server, its streams, one worker.

    The server listens on 127.0.0.1 only and keeps all jobs and answers in memory: what waits in it is gone
    when it ends, and so are tenants and what they used, unless `--keep` says where they lie. Ctrl-C ends
    both. The worker reads the tables `worker` and `engine` of `sparkle --config FILE`.

    Examples:

        sparkle up

        sparkle up --port 0 --region eu --model /models/sparkle-27b

        sparkle up --keep ~/.sparkle

    Exit codes: 1 the worker ended, 2 something is not installed, 3 the server does not start or ended, 130
    after Ctrl-C.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from rich.console import Console

    from sparkle.producers.local_service import LocalServiceSettings
    from sparkle.producers.running import run
    from sparkle.producers.serving import run_service

    config = config_of(context)
    settings = LocalServiceSettings(
        port=port, region=region, model=model, config=config, keep=keep, show_worker_log=True
    )
    raise typer.Exit(run(run_service(settings, Console(highlight=False))))

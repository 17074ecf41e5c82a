"""`sparkle status`: its flags and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkle.producers.commands.options import NatsOption, RegionOption, config_of


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it anew until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How often to draw it with --watch.")
    ] = 1.0,
    region: RegionOption = None,
    nats: NatsOption = None,
) -> None:
    """Show what waits, what runs and who works on it.

    Per class, p0 (the shortest jobs) to p4: jobs waiting, jobs running, the age of the oldest. Then each
    worker with its state, its used slots and its model. Counts and names, nothing of what a job holds.

    Examples:

        sparkle status --region eu

        sparkle status --watch --every 0.5

    Exit codes: 0, 3 when the queue cannot be used, 130 after Ctrl-C.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from rich.console import Console

    from sparkle.config import environment
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings
    from sparkle.producers.watching import show_status, watch_status

    settings = read_settings(config_of(context), environment(), nats=nats, region=region)
    console = Console(highlight=False)
    main = watch_status(settings, console, every_s=every) if watch else show_status(settings, console)
    raise typer.Exit(run(main))

"""`sparkle worker drain`: its flags and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkle.producers.commands.options import NatsOption, RegionOption, config_of


def drain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker, as `sparkle status` shows it.")],
    region: RegionOption = None,
    nats: NatsOption = None,
) -> None:
    """Have a worker hand its jobs over to others and end.

    It takes nothing more. What it runs goes on elsewhere at the next token, or is finished first, where the
    worker was given time for that with --drain-s.

    Example:

        sparkle worker drain gpu-7-3f2a1c --region eu --nats nats://queue.example:4222

    Exit codes: 0 it has begun to, 2 there is no such worker, 3 when the queue cannot be used.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment
    from sparkle.producers.draining import drain_worker
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings

    settings = read_settings(config_of(context), environment(), nats=nats, region=region)
    raise typer.Exit(run(drain_worker(settings, name)))

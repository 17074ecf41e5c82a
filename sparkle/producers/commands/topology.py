"""`sparkle topology`: its flags and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkle.producers.commands.options import NatsOption, config_of

topology = typer.Typer(no_args_is_help=True, help="Declare the queue's streams, or show them.")


@topology.command()
def apply(
    context: typer.Context,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", metavar="NAME", help="A region to serve; give it once for each. Default: local"
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Copies of each stream: 1, or 3 on a cluster of three. Default: 1")
    ] = None,
    nats: NatsOption = None,
) -> None:
    """Declare the streams and consumers; run it as often as you like.

    What is there already stays, with its jobs; regions are only ever added. Sizes and times come from
    `[topology]` of `--config FILE` or SPARKLE_TOPOLOGY_…: SPARKLE_TOPOLOGY_JOBS_MAX_BYTES=4294967296.

    Example:

        sparkle topology apply --region eu --region us --replicas 3

    Exit codes: 0, 2 when JetStream refuses a setting, 3 when the queue cannot be used.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment, load
    from sparkle.producers.declaring import apply_topology
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings
    from sparkle.queue.topology import TopologySettings

    file, environ = config_of(context), environment()
    settings = read_settings(file, environ, nats=nats)
    flags = {"regions": ",".join(region) if region else None, "replicas": replicas}
    wanted = load(TopologySettings, "topology", file=file, environ=environ, flags=flags)
    raise typer.Exit(run(apply_topology(settings, wanted)))


@topology.command()
def show(context: typer.Context, nats: NatsOption = None) -> None:
    """Show the streams and consumers that are declared, with their fill.

    Example:

        sparkle topology show --nats nats://queue.example:4222

    Exit codes: 0, 3 when the queue cannot be used or has no streams.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment
    from sparkle.producers.declaring import show_topology
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings

    settings = read_settings(config_of(context), environment(), nats=nats)
    raise typer.Exit(run(show_topology(settings)))

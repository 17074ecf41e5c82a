"""`sparkle topology`: its flags and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkle.producers.commands.options import NatsOption, RegionOption, config_of

topology = typer.Typer(
    no_args_is_help=True, help="Declare the queue's streams, show them, configure its servers."
)


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


@topology.command()
def config(
    context: typer.Context,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="server, worker, producer, gateway, operator, gateway-meter or operator-meter.",
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The server's, the worker's, or the producer's tenant.")
    ] = "",
    nkey: Annotated[
        str, typer.Option(metavar="KEY", help="A user's public key; `sparkle topology key` makes one.")
    ] = "",
    region: RegionOption = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="HOST", help="A server's cluster: give every node, this one too. Default: none"
        ),
    ] = None,
) -> None:
    """Print what a nats-server is to be told: a server's file, a user's entry, or the account of a tenant.

    The server's file has accounts that keep content in memory, TLS with certificates of clients, and room for
    the streams that `topology apply` declares with the same `[topology]`. It includes `users.conf` and
    `meter-users.conf`, which hold `users: [ … ]` with an entry of each user, and `tenants.conf`, which holds
    what is printed for each producer. docs/operations.md has it all.

    Examples:

        sparkle topology config --role worker --name w1 --region eu --nkey UBKX… >> users

        sparkle topology config --role producer --name acme --region eu --nkey UDQ2… >> tenants.conf

        SPARKLE_TOPOLOGY_REPLICAS=3 sparkle topology config --role server --name n1 --node n1.example
        --node n2.example --node n3.example > nats.conf

    Exit codes: 0, 2 when a name, a key or a setting cannot be used.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment
    from sparkle.producers.configuring import configuration

    typer.echo(
        configuration(
            role,
            file=config_of(context),
            environ=environment(),
            name=name,
            nkey=nkey,
            region=region,
            nodes=tuple(node or ()),
        )
    )


@topology.command()
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where its secret half goes; must not exist.")],
) -> None:
    """Make a nkey: its seed goes to a file that only you may read, its public half is printed.

    The program that is to use it names the file as `seed_file` in `[bus]`; servers know only the public half.

    Example:

        sparkle topology key w1.seed

    Exit codes: 0, 2 when the file is there already or nkeys is not installed.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.queue.nkey import write_seed

    typer.echo(write_seed(file))

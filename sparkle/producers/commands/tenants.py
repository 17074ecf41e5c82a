"""`sparkle tenants`: its flags and its help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sparkle.producers.commands.options import config_of

if TYPE_CHECKING:
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.producers.metering.administering import Administration

tenants = typer.Typer(
    no_args_is_help=True, help="Who may ask through the gateway: keys, models, allowances, and what was used."
)

MeterOption = Annotated[
    str | None,
    typer.Option("--meter-nats", metavar="URL", help="The metering account. Default: that of `sparkle up`."),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="A model that it may ask for, once for each; any is all."),
]
AllowanceOption = Annotated[
    str | None,
    typer.Option(metavar="N", help="Tokens of prompts and answers a month, UTC, or none."),
]
RequestsOption = Annotated[
    str | None, typer.Option(metavar="N", help="Requests a minute at each gateway, or none.")
]
TokensOption = Annotated[
    str | None, typer.Option(metavar="N", help="Tokens a minute at each gateway, or none.")
]
RunningOption = Annotated[
    str | None, typer.Option(metavar="N", help="Jobs at once at each gateway, or none.")
]


@tenants.command()
def init(
    context: typer.Context,
    replicas: Annotated[
        int | None, typer.Option(help="Copies of each stream: 1, or 3 on a cluster of three. Default: 1")
    ] = None,
    meter_nats: MeterOption = None,
) -> None:
    """Declare the metering account's streams; run it as often as you like.

    Usage records, tenants and accounts lie in files there; nothing of what a job says ever does. How much is
    kept of records comes from `[usage]` of `--config FILE` or SPARKLE_USAGE_….

    Example:

        sparkle tenants init --replicas 3 --meter-nats tls://queue.example:4222

    Exit codes: 0, 2 when JetStream refuses a setting, 3 when the account cannot be reached.
    """
    from sparkle.config import environment, load
    from sparkle.queue.usage_streams import UsageSettings

    streams = load(
        UsageSettings,
        "usage",
        file=config_of(context),
        environ=environment(),
        flags={"replicas": replicas},
    )
    _administer(context, meter_nats, lambda they: they.init(streams))


@tenants.command()
def add(
    context: typer.Context,
    name: NameArgument,
    region: Annotated[
        str, typer.Option(metavar="NAME", help="Where its content may go. There is no default.")
    ],
    model: ModelsOption = None,
    allowance: AllowanceOption = None,
    requests_per_minute: RequestsOption = None,
    tokens_per_minute: TokensOption = None,
    max_running: RunningOption = None,
    meter_nats: MeterOption = None,
) -> None:
    """Add a tenant, and print its key: once, as only its hash is kept.

    Without a model it may ask for any that is served, and what gets no number has no end.

    Examples:

        sparkle tenants add acme --region eu --model sparkle-27b --allowance 50_000_000

        key=$(sparkle tenants add lab --region eu --max-running 20)

    Exit codes: 0, 2 when the name is taken or a value is wrong, 3 when the account cannot be reached.
    """
    from sparkle.producers.metering.tenant_changes import TenantChanges, new_tenant

    changes = TenantChanges(
        models=model,
        allowance=allowance,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_running=max_running,
    )
    tenant = new_tenant(name, region, changes)
    _administer(context, meter_nats, lambda they: they.add(tenant))


@tenants.command()
def change(
    context: typer.Context,
    name: NameArgument,
    region: Annotated[str | None, typer.Option(metavar="NAME", help="Where its content may go.")] = None,
    model: ModelsOption = None,
    allowance: AllowanceOption = None,
    requests_per_minute: RequestsOption = None,
    tokens_per_minute: TokensOption = None,
    max_running: RunningOption = None,
    meter_nats: MeterOption = None,
) -> None:
    """Change a tenant: what is not said stays as it is. Gateways follow at once.

    Examples:

        sparkle tenants change acme --allowance 80_000_000 --model sparkle-27b --model sparkle-tiny

        sparkle tenants change acme --allowance 0

    The second one lets it ask for nothing more this month or any other.

    Exit codes: 0, 2 when there is no such tenant or a value is wrong, 3 when the account cannot be reached.
    """
    from sparkle.producers.metering.tenant_changes import TenantChanges

    changes = TenantChanges(
        region=region,
        models=model,
        allowance=allowance,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_running=max_running,
    )
    _administer(context, meter_nats, lambda they: they.change(name, changes.of))


@tenants.command("list")
def list_(
    context: typer.Context,
    format_: Annotated[str, typer.Option("--format", metavar="FORM", help="table or json.")] = "table",
    meter_nats: MeterOption = None,
) -> None:
    """Show all tenants, their limits, and which keys they have by the keys' ids: no key and no hash.

    Example:

        sparkle tenants list

    Exit codes: 0, 2 when a flag is wrong, 3 when the account cannot be reached.
    """
    from sparkle.producers.metering.usage_rows import form_of

    _administer(context, meter_nats, lambda they: they.show(form_of(format_)))


@tenants.command()
def rotate(
    context: typer.Context,
    name: NameArgument,
    old_keys_s: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, max=31_536_000.0, help="How long its keys so far still do."),
    ] = 0.0,
    meter_nats: MeterOption = None,
) -> None:
    """Print a new key of a tenant; those it has end at once, or after `--old-keys-s`.

    Examples:

        sparkle tenants rotate acme

        sparkle tenants rotate acme --old-keys-s 86400

    Exit codes: 0, 2 when there is no such tenant, 3 when the account cannot be reached.
    """
    _administer(context, meter_nats, lambda they: they.rotate(name, old_keys_s=old_keys_s))


@tenants.command()
def usage(
    context: typer.Context,
    name: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Tenants. Default: all of them")
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="One month, UTC. Default: every one with a job")
    ] = None,
    format_: Annotated[str, typer.Option("--format", metavar="FORM", help="table, csv or json.")] = "table",
    meter_nats: MeterOption = None,
) -> None:
    """Show what tenants have used, month by month: jobs, tokens of prompts, cached ones, of answers.

    It counts what has not been counted yet, and needs no gateway for that. A job belongs to the month, UTC,
    in which it ended, and is counted once, however often the queue delivered it.

    Examples:

        sparkle tenants usage

        sparkle tenants usage acme --month 2026-11 --format csv > 2026-11.csv

    Exit codes: 0, 2 when there is no such tenant or a flag is wrong, 3 when the account cannot be reached.
    """
    from sparkle.producers.metering.usage_rows import form_of

    _administer(context, meter_nats, lambda they: they.usage(name or [], month=month, form=form_of(format_)))


def _administer(
    context: typer.Context, meter_nats: str | None, what: Callable[[Administration], Awaitable[int]]
) -> None:
    """Do it. Raises typer.Exit, ConfigError, QueueError."""
    from rich.console import Console

    from sparkle.config import environment
    from sparkle.producers.metering.administering import Administration
    from sparkle.producers.metering.clock import Clock
    from sparkle.producers.metering.settings import read_metering
    from sparkle.producers.running import run

    settings = read_metering(config_of(context), environment(), nats=meter_nats)
    out, notes = Console(highlight=False), Console(stderr=True, highlight=False)

    async def main() -> int:
        return await what(Administration(settings, out, notes, Clock()))

    raise typer.Exit(run(main()))

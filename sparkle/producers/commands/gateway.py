"""`sparkle gateway`: its flags and its help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sparkle.errors import ConfigError
from sparkle.producers.commands.options import NatsOption, RegionOption, TenantOption, config_of


def gateway(
    context: typer.Context,
    region: RegionOption = None,
    nats: NatsOption = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen. Default: 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Port to listen on; 0 takes a free one. Default: 8080")
    ] = None,
    meter_nats: Annotated[
        str | None,
        typer.Option(
            "--meter-nats",
            metavar="URL",
            help="Where keys and allowances are. Default: that of `sparkle up`.",
        ),
    ] = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Let everybody on this machine ask, as one tenant.")
    ] = False,
    tenant: TenantOption = None,
) -> None:
    """Answer HTTP as OpenAI does, by way of the queue.

    Keys are those of `sparkle tenants`, whose help says how to make one.

    Examples:

        sparkle gateway --nats nats://queue.example:4222 --region eu --host 0.0.0.0

        sparkle gateway --no-keys

        curl localhost:8080/v1/completions -d '{"prompt": "MFA is", "max_tokens": 20}'

    The first SIGTERM or SIGINT takes no more requests and lets answers end for `drain_s` (30), a second one
    ends them. Exit codes: 0 told to end, 2 a flag or a setting is wrong, 3 the queue cannot be used.

    All else is set in the table `gateway` of `sparkle --config FILE`, or in the environment as
    SPARKLE_GATEWAY_MAX_TOKENS and so on; docs/settings.md has it.
    """
    flags = {"host": host, "port": port, "no_keys": no_keys or None}
    _serve(config_of(context), flags, nats=nats, meter_nats=meter_nats, region=region, tenant=tenant)


def _serve(
    file: Path | None,
    flags: Mapping[str, object],
    *,
    nats: str | None,
    meter_nats: str | None,
    region: str | None,
    tenant: str | None,
) -> None:
    """Be a gateway. Raises ConfigError without the extra `gateway`, else what `run_gateway` raises."""
    # loaded only when it is used: `sparkle --help` needs none of it
    from sparkle.config import environment, load
    from sparkle.producers.metering.settings import read_metering
    from sparkle.producers.settings import read_settings

    try:
        from sparkle.producers.gateway.serve import run_gateway
        from sparkle.producers.gateway.settings import GatewaySettings
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; `pip install 'sparkle-inference[gateway]'` brings it"
        ) from None
    environ = environment()
    client = read_settings(file, environ, nats=nats, region=region, tenant=tenant)
    settings = load(GatewaySettings, "gateway", file=file, environ=environ, flags=flags)
    metering = read_metering(file, environ, nats=meter_nats)
    run_gateway(settings, client, metering, typer.echo)

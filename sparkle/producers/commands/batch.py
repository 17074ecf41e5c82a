"""`sparkle batch`: its flags, its help, its progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkle.producers.commands.options import NatsOption, RegionOption, TenantOption, config_of


def batch(
    context: typer.Context,
    input_file: Annotated[
        Path,
        typer.Argument(
            metavar="IN.jsonl", exists=True, dir_okay=False, readable=True, help="One job a line."
        ),
    ],
    output_file: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUT.jsonl", help="Where answers go, in the order they come."),
    ],
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Jobs on the queue at once.")] = 64,
    region: RegionOption = None,
    tenant: TenantOption = None,
    nats: NatsOption = None,
) -> None:
    """Answer a file of jobs, in the OpenAI batch format in and out.

    A line of the input:

        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […]}}

    A line that cannot be answered gets a line with an `error` that names the field. Stop it at any time
    (Ctrl-C) and run the same command again: lines with an output are skipped, a half-written one is mended.

    Example:

        sparkle batch alerts.jsonl -o verdicts.jsonl --concurrency 200

    Exit codes: 0 no line of this run failed, 1 some did, 2 a flag or a file is wrong, 3 the queue cannot
    be used, 130 after Ctrl-C.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment
    from sparkle.errors import ConfigError
    from sparkle.producers.batch_command import run_batch
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings

    if output_file.exists() and output_file.samefile(input_file):
        raise ConfigError(f"{output_file} is the input as well; name another file with -o")
    settings = read_settings(config_of(context), environment(), nats=nats, region=region, tenant=tenant)
    raise typer.Exit(run(run_batch(settings, input_file, output_file, concurrency)))

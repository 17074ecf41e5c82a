"""Flags that several commands share. Loads no client: `sparkle --help` needs none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

NatsOption = Annotated[
    str | None,
    typer.Option("--nats", metavar="URL", help="Where the queue is. Default: nats://127.0.0.1:4222"),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", metavar="NAME", help="Where the content may be worked on. Default: local"),
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Whose jobs they are. Default: default")
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """What was said before the command's name."""

    config: Path | None
    """The file of settings."""


def config_of(context: typer.Context) -> Path | None:
    """The file named by `sparkle --config FILE …`."""
    return context.obj.config if isinstance(context.obj, Invocation) else None

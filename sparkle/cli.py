"""The command `sparkle`: puts the sub-commands together, turns errors into one sentence and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from sparkle.config import require_tables
from sparkle.errors import CheckpointError, ConfigError, ContractError, QueueError, SparkleError
from sparkle.model.commands.checkpoint import checkpoint
from sparkle.producers.commands.ask import ask
from sparkle.producers.commands.batch import batch
from sparkle.producers.commands.demo import demo
from sparkle.producers.commands.drain import drain
from sparkle.producers.commands.gateway import gateway
from sparkle.producers.commands.options import Invocation
from sparkle.producers.commands.status import status
from sparkle.producers.commands.tenants import tenants
from sparkle.producers.commands.topology import topology
from sparkle.producers.commands.up import up
from sparkle.quiet.process import keep_content_in
from sparkle.workers.command import worker
from sparkle.workers.kernels_command import kernels

DISTRIBUTION = "sparkle-inference"

TABLES = (
    "client",
    "bus",
    "encryption",
    "rates",
    "outbox",
    "gateway",
    "topology",
    "metering",
    "meter_bus",
    "usage",
    "worker",
    "engine",
)
"""What a file of settings may have."""

_TABLES_IN_WORDS = ", ".join(f"[{name}]" for name in TABLES)

EXIT_FAILED = 1
"""A job failed, or something in the program did."""

EXIT_USAGE = 2
"""A flag, a setting, a model, a file or the question is wrong."""

EXIT_QUEUE = 3
"""The queue cannot be used: not there, full, or without its streams."""


class SparkleGroup(TyperGroup):
    """Runs a sub-command; what it raises becomes one sentence on stderr."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own context is private
        """Run the command. Raises typer.Exit with the code that says what failed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # whoever read our output has gone: nothing more can be said, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except SparkleError as error:
            if ctx.params["debug"]:
                # not what it was raised from: that one's text may hold values
                traceback.print_exception(error, chain=False)
            typer.echo(f"sparkle: {error}", err=True)
            raise typer.Exit(exit_code(error)) from None


def exit_code(error: SparkleError) -> int:
    """What a command ends with after this error."""
    if isinstance(error, CheckpointError | ConfigError | ContractError):
        return EXIT_USAGE
    return EXIT_QUEUE if isinstance(error, QueueError) else EXIT_FAILED


app = typer.Typer(
    name="sparkle",
    cls=SparkleGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("demo")(demo)
app.command("up")(up)
app.command("ask")(ask)
app.command("batch")(batch)
app.command("status")(status)
app.add_typer(topology, name="topology")
app.add_typer(tenants, name="tenants")
workers = typer.Typer(invoke_without_command=True)
workers.callback()(worker)
workers.command("drain")(drain)
app.add_typer(workers, name="worker")
app.command("gateway")(gateway)
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(kernels, name="kernels")


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "of a source tree that is not installed"
        typer.echo(f"sparkle {version}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help=f"Settings: TOML with {_TABLES_IN_WORDS}."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Language-model jobs from a queue: submit them, watch them, serve them.

    See it work, without a GPU:

        sparkle demo

    Settings come from `--config FILE`, then from the environment (`SPARKLE_CLIENT_NATS`…), then from flags;
    docs/operations.md has all of them.
    """
    if config is not None:
        require_tables(config, TABLES)
    context.obj = Invocation(config=config)


def main() -> None:
    """What the installed command runs."""
    # what matters to people comes as an error's sentence, not as an event
    keep_content_in(logging.ERROR)
    try:
        app()
    # a fault of the program: its place is told, its text could hold content
    except Exception as error:  # noqa: BLE001
        traceback.print_tb(error.__traceback__)
        typer.echo(f"sparkle: a fault in the program: {type(error).__name__} at the place above", err=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()

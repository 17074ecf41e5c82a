"""`sparkle demo`: its flags and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The checkpoint's directory. Default: the bundled sparkle-tiny."),
    ] = None,
) -> None:
    """See it work: real prompts through a real queue to a model, streamed back. No GPU, no network.

    Starts a nats-server on a free port of 127.0.0.1 and one worker with sparkle-tiny, a small model of the
    real one's architecture, sends four prompts at once and then the next question of one, shows what happens,
    and ends everything it started.

    Example:

        sparkle demo

    Needs `pip install 'sparkle-inference[worker,local]'`.

    Exit codes: 0, 1 a job or the worker failed, 2 something is not installed, 3 the server does not start,
    130 after Ctrl-C.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from rich.console import Console

    from sparkle.producers.demo import run_demo
    from sparkle.producers.local_service import LocalServiceSettings
    from sparkle.producers.running import run

    raise typer.Exit(run(run_demo(LocalServiceSettings(model=model), Console(highlight=False))))

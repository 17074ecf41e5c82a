"""The command `sparkle kernels`: flags in, a process of the engine that compiles. Knows no kernel."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sparkle.config import environment, load
from sparkle.engine.arguments import command_line
from sparkle.engine.settings import EngineSettings, default_model, require_checkpoint
from sparkle.errors import ConfigError

kernels = typer.Typer(no_args_is_help=True, help="Compile what a GPU runs, before it is needed.")


# a second command makes the group: typer takes a single one for the whole
@kernels.callback()
def _group() -> None:
    pass


@kernels.command()
def build(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The checkpoint's directory. Default: the bundled sparkle-tiny."),
    ] = None,
    kernel_cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where compiled kernels are kept. Default: Triton's own place."),
    ] = None,
) -> None:
    """Compile every kernel that a worker with this model and these settings launches. Needs an H200.

    A worker that finds them compiles nothing when it starts. Kernels depend on the model's sizes, on slots,
    page_tokens and the longest context, and on the versions of torch and Triton; the directory may be copied
    to other machines of the same kind.

    Example:

        sparkle kernels build --model /models/qwen --kernel-cache /var/cache/sparkle

    Exit codes: 0, 1 when the engine failed, 2 when model, settings or GPU cannot be used.
    """
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: not installed; `pip install 'sparkle-inference[worker]'` brings what a "
            "worker needs"
        )
    file = getattr(context.obj, "config", None)
    flags = {"kernel_cache": kernel_cache}
    settings = load(EngineSettings, "engine", file=file, environ=environment(), flags=flags)
    directory = model or default_model()
    require_checkpoint(directory)
    # a folder named sparkle where we were started is not the package
    program = [sys.executable, "-P", "-m", "sparkle.engine.kernel_build"]
    done = subprocess.run([*program, *command_line(directory, settings)], check=False)
    raise typer.Exit(done.returncode)

"""`sparkle checkpoint`: its flags and its help. Knows no torch."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated

import typer

from sparkle.errors import ConfigError

if TYPE_CHECKING:
    from sparkle.model.config import ModelConfig

checkpoint = typer.Typer(no_args_is_help=True, help="Make model directories for tests and measurements.")


class Shape(StrEnum):
    """The sizes that a checkpoint can be made of."""

    LARGE = "27b"
    TINY = "tiny"


# a second command makes the group: typer takes a single one for the whole
@checkpoint.callback()
def _group() -> None:
    pass


@checkpoint.command("random")
def random_checkpoint(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; new or empty.")],
    shape: Annotated[Shape, typer.Option(help="Sizes of Qwen3.8-27B or of sparkle-tiny.")] = Shape.LARGE,
    layers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N layers. Default: all")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed gives other weights.")] = 0,
) -> None:
    """Write a checkpoint with random weights, to measure loading, memory and speed without the real ones.

    Files, names, shapes and dtypes are those of the published FP8 checkpoint, tokenizer and chat template are
    sparkle-tiny's. What a model with these weights answers means nothing. 27b takes 30 GB.

    Example:

        sparkle checkpoint random --shape 27b --out /data/random-27b

    Exit codes: 0, 2 when the directory is not empty or has no room.
    """
    # loaded only when it is used: `sparkle --help` needs no model
    from sparkle.model.random_checkpoint import checkpoint_bytes, write_random_checkpoint
    from sparkle.model.shapes import bundled_checkpoint

    config = _config(shape, layers)
    size_bytes = checkpoint_bytes(config)
    typer.echo(f"{config.num_layers} layers with {size_bytes / 1e9:.2f} GB of random weights to {out}")
    with typer.progressbar(length=size_bytes, label="writing") as bar:
        turn = Lock()

        def progress(written_bytes: int) -> None:
            with turn:
                bar.update(written_bytes)

        write_random_checkpoint(config, out, text=bundled_checkpoint(), seed=seed, progress=progress)
    typer.echo(f"done; `sparkle worker --model {out}` loads it")


def _config(shape: Shape, layers: int | None) -> ModelConfig:
    """Raises ConfigError where there are not so many layers."""
    from sparkle.model.shapes import shape_27b, shape_tiny

    config = shape_27b() if shape is Shape.LARGE else shape_tiny()
    if layers is None:
        return config
    if layers > config.num_layers:
        raise ConfigError(f"layers is {layers} but {shape} has {config.num_layers}")
    return dataclasses.replace(config, layer_types=config.layer_types[:layers])

"""A batch on the terminal: a progress bar with rate and time left, then a line of totals. Knows no flags."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sparkle.producers.batch import BatchRun, Tally, count_lines, read_lines
from sparkle.producers.batch_output import BatchOutput
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings


async def run_batch(settings: ClientSettings, input_file: Path, output_file: Path, concurrency: int) -> int:
    """0 when every line of this run was answered, else 1. Raises ConfigError, and as `BatchRun.run`."""
    console = Console(stderr=True, highlight=False)
    total = count_lines(input_file)
    with BatchOutput(output_file) as output, _progress(console) as progress:
        shown = _Shown(progress, total)
        async with await Client.open(settings) as client:
            run = BatchRun(client, output, concurrency=concurrency, on_progress=shown.update)
            try:
                await run.run(read_lines(input_file))
            except asyncio.CancelledError:
                progress.stop()
                console.print(f"stopped: {shown.summary(run.tally)}; run the same command again to go on")
                raise
    console.print(shown.summary(run.tally))
    return 1 if run.tally.failed else 0


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        # on a pipe there is nothing to redraw; the totals come at the end
        disable=not console.is_terminal,
    )


class _Shown:
    """The bar, and the figures beside it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._began_s = time.monotonic()
        self._task: TaskID = progress.add_task("batch", total=total, figures="")

    def update(self, tally: Tally) -> None:
        # what an earlier run did is no part of this one's rate
        self._progress.update(
            self._task,
            total=self._total - tally.skipped,
            completed=tally.answered + tally.failed,
            figures=f"{tally.failed} failed · {self._rates(tally)}",
        )

    def summary(self, tally: Tally) -> str:
        return (
            f"{tally.answered} answered, {tally.failed} failed, {tally.skipped} done before, "
            f"of {self._total} lines · {self._rates(tally)}"
        )

    def _rates(self, tally: Tally) -> str:
        seconds = max(time.monotonic() - self._began_s, 1e-3)
        lines = (tally.answered + tally.failed) / seconds
        return f"{lines:.1f} lines/s · {tally.completion_tokens / seconds:.0f} tokens/s"

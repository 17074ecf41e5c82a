"""Shows the demo's jobs on their way: panels on a terminal, else one line an event. Knows no queue."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sparkle.producers.answer_view import milliseconds, printable, tokens_per_s
from sparkle.producers.demo_prompts import DemoPrompt
from sparkle.schemas.answer import Channel, Chunk, Result
from sparkle.schemas.priority import PriorityClass

PANEL_LINES = 4
"""The last lines of an answer that a live panel shows."""


@dataclass(slots=True)
class Progress:
    """How far one job is."""

    prompt: DemoPrompt
    priority: PriorityClass
    began_s: float = 0.0
    """When it was submitted, by the steady clock."""

    state: str = "to be sent"
    worker: str = ""
    text: str = ""
    tokens: int = 0
    first_token_s: float | None = None
    """From submitting to the first token here, through queue, lease and prompt."""

    result: Result | None = None

    def age_s(self) -> float:
        """Seconds since the job was submitted."""
        return time.monotonic() - self.began_s


class DemoView(Protocol):
    """Where the demo shows its jobs."""

    def __enter__(self) -> DemoView: ...
    def __exit__(self, *_: object) -> None: ...
    def queued(self, progress: Progress) -> None: ...
    def chunk(self, progress: Progress, chunk: Chunk) -> None: ...
    def done(self, progress: Progress) -> None: ...


def note_queued(progress: Progress) -> None:
    """The queue has the job."""
    progress.state = f"in the queue as {progress.priority}, stored after {milliseconds(progress.age_s())}"


def note_chunk(progress: Progress, chunk: Chunk) -> None:
    """More of the answer is here."""
    if progress.first_token_s is None and chunk.tokens:
        progress.first_token_s = progress.age_s()
        progress.worker = chunk.worker
    progress.tokens += len(chunk.tokens)
    if chunk.channel is Channel.ANSWER:
        progress.text += printable(chunk.text)
    progress.state = f"leased by {progress.worker}, {progress.tokens} tokens so far"


def note_done(progress: Progress, result: Result) -> None:
    """The stored result is here."""
    progress.result = result
    progress.state = f"done: {progress.tokens} tokens, ended by {result.finish_reason}"


class LiveView:
    """A panel a job, drawn anew ten times a second."""

    def __init__(self, console: Console, jobs: list[Progress]) -> None:
        self._jobs = jobs
        self._console = console
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=10, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        # what was drawn while it ran is gone: the answers stay, whole
        for job in self._jobs:
            self._console.print(_panel(job, job.text))

    def queued(self, progress: Progress) -> None:
        """Drawn with the next turn."""

    def chunk(self, progress: Progress, chunk: Chunk) -> None:
        """Drawn with the next turn."""

    def done(self, progress: Progress) -> None:
        """Drawn with the next turn."""

    def _render(self) -> RenderableType:
        width = max(20, self._console.width - 4)
        return Group(*(_panel(job, _tail(job.text, width)) for job in self._jobs))


class PlainView:
    """A line an event, with its time; an answer's text a line at a time, so that four can be told apart."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, int] = {}

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def queued(self, progress: Progress) -> None:
        """The job's place in the queue."""
        self._line(progress, progress.state)

    def chunk(self, progress: Progress, chunk: Chunk) -> None:
        """The first token, then each whole line."""
        name = progress.prompt.name
        if name not in self._shown:
            self._shown[name] = 0
            first = milliseconds(progress.first_token_s or 0.0)
            self._line(progress, f"leased by {progress.worker}, first token after {first}")
        while (end := progress.text.find("\n", self._shown[name])) >= 0:
            self._line(progress, f"│ {progress.text[self._shown[name] : end]}")
            self._shown[name] = end + 1

    def done(self, progress: Progress) -> None:
        """The last line of the answer and how it ended."""
        rest = progress.text[self._shown.get(progress.prompt.name, 0) :]
        if rest:
            self._line(progress, f"│ {rest}")
        self._line(progress, progress.state)

    def _line(self, progress: Progress, text: str) -> None:
        line = f"{progress.age_s():7.3f} s  {progress.prompt.name:10} {text}"
        self._console.print(Text(line), soft_wrap=True)


def _tail(text: str, width: int) -> str:
    """The last lines of a text that will be folded at `width`."""
    return "\n".join(text.splitlines()[-PANEL_LINES:])[-PANEL_LINES * width :]


def _panel(job: Progress, text: str) -> Panel:
    title = Text.assemble((job.prompt.name, "bold"), " · ", job.state)
    border = "green" if job.result else "yellow" if job.worker else "dim"
    return Panel(Text(text or job.prompt.shows), title=title, title_align="left", border_style=border)


def summary_table(jobs: list[Progress]) -> Table:
    """What each job took: first token as seen from here, the rest as the worker measured it."""
    table = Table(title="what the jobs took", title_justify="left")
    for name in ("job", "class", "prompt", "cached", "queued", "first\ntoken", "answer", "tokens/s"):
        table.add_column(name, justify="left" if name in ("job", "class") else "right", no_wrap=True)
    for job in jobs:
        if job.result is None:
            continue
        usage = job.result.usage
        table.add_row(
            job.prompt.name,
            job.priority,
            str(usage.prompt_tokens),
            str(usage.cached_tokens),
            milliseconds(usage.queue_s),
            milliseconds(job.first_token_s or 0.0),
            str(usage.completion_tokens),
            f"{tokens_per_s(usage):.0f}",
        )
    return table

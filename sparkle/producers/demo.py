"""The demo: a whole service on this machine, four prompts at once, one behind them. Knows no flags."""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.text import Text

from sparkle.producers.client import Client
from sparkle.producers.demo_prompts import DemoPrompt, demo_prompts, next_prompt
from sparkle.producers.demo_view import (
    DemoView,
    LiveView,
    PlainView,
    Progress,
    note_chunk,
    note_done,
    note_queued,
    summary_table,
)
from sparkle.producers.local_service import LocalService, LocalServiceSettings
from sparkle.producers.settings import ClientSettings
from sparkle.schemas.priority import classify, estimate_prompt_tokens

WHAT_YOU_SAW = """
What you just saw:
1. Four jobs went into a NATS JetStream work queue in memory, each on its own subject, in a class by length.
2. A worker with free slots pulled them, shortest class first, and holds a lease on each while it works.
3. One engine process wrote all four at once, a token each a pass or more; what was new was sent within 20 ms.
4. Each whole result was stored and acknowledged before its job left the queue. None of it went to a disk.
5. The note's job went to the worker that holds its conversation's state, which read only what was new.

Next (in a new shell after `. .venv/bin/activate`, where `make demo` made the environment):
  sparkle up                       a service that stays, until Ctrl-C
  sparkle ask "What is MFA?"       in a second terminal
  sparkle status --watch           what waits, what runs, who works
  sparkle batch in.jsonl -o out.jsonl
"""


async def run_demo(settings: LocalServiceSettings, console: Console) -> int:
    """Start a service, send the prompts, show everything, end the service; 0.

    Raises what `LocalService` raises, and JobFailed.
    """
    began_s = time.monotonic()

    def stage(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:7.3f} s  {text}", soft_wrap=True)

    async with LocalService(settings, stage) as service:
        client_settings = ClientSettings(nats=service.url, region=settings.region, tenant="demo")
        async with await Client.open(client_settings) as client:
            stage("four prompts at once:\n")
            jobs = [_job(prompt, client.settings) for prompt in demo_prompts()]
            await _ask_all(client, service, jobs, console)
            console.print()
            stage("the next question of one of them:\n")
            following = [_job(_next(jobs), client.settings)]
            await _ask_all(client, service, following, console)
            jobs += following
    first = min(job.began_s + job.first_token_s for job in jobs if job.first_token_s is not None)
    console.print()
    console.print(summary_table(jobs))
    console.print(f"first token {first - began_s:.1f} s after the start of the demo")
    console.print(WHAT_YOU_SAW, soft_wrap=True)
    return 0


def _job(prompt: DemoPrompt, settings: ClientSettings) -> Progress:
    """The prompt with the class that the client will give it."""
    tokens = estimate_prompt_tokens(prompt.job)
    return Progress(prompt, classify(tokens, prompt.job.max_tokens, settings.rates))


def _next(jobs: list[Progress]) -> DemoPrompt:
    """What is asked behind the analysis, as it was answered."""
    analysis = next(job for job in jobs if job.prompt.name == "analysis")
    assert analysis.result is not None, "all are answered"
    return next_prompt(analysis.prompt, analysis.result.text)


async def _ask_all(client: Client, service: LocalService, jobs: list[Progress], console: Console) -> None:
    for job in jobs:
        console.print(Text(f"  {job.prompt.name:10} {job.prompt.shows}: {job.prompt.question}", "dim"))
    console.print()
    view: DemoView = LiveView(console, jobs) if console.is_terminal else PlainView(console)
    with view:
        try:
            async with asyncio.TaskGroup() as group:
                # without worker or server no job would ever end
                watching = group.create_task(service.until_a_part_exits())
                await asyncio.gather(*(group.create_task(_ask(client, job, view)) for job in jobs))
                watching.cancel()
        except BaseExceptionGroup as failed:
            # the first one stopped the others, and says why
            raise failed.exceptions[0] from None


async def _ask(client: Client, progress: Progress, view: DemoView) -> None:
    progress.began_s = time.monotonic()
    handle = await client.submit(progress.prompt.job)
    note_queued(progress)
    view.queued(progress)
    async for chunk in handle:
        note_chunk(progress, chunk)
        view.chunk(progress, chunk)
    note_done(progress, await handle.result())
    view.done(progress)

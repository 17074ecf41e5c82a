"""`sparkle ask`: its flags and its help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from sparkle.errors import InvalidMessage
from sparkle.producers.commands.options import NatsOption, RegionOption, TenantOption, config_of


def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="What to ask; `-` reads it from stdin.")],
    system: Annotated[
        str | None, typer.Option(help="What the model is told to be, before the question.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Where the answer ends at the latest. Default: 1024")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is always the likeliest token, 2 the most varied. Default: 1")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    thinking: Annotated[
        Literal["off", "low", "medium", "xhigh"] | None,
        typer.Option(help="How long the model thinks first; shown dim, on a terminal only. Default: off"),
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(min=0, max=20, metavar="N", help="How likely tokens were, and N others.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="From now on; then the answer is of no more use."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON schema: the answer is JSON that is valid under it."),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON list of functions that the model may call."),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Chunks and result as lines of JSON instead of text.")
    ] = False,
    region: RegionOption = None,
    tenant: TenantOption = None,
    nats: NatsOption = None,
) -> None:
    """Ask one question and see the answer as it is written.

    The answer goes to stdout, calls of functions too, one a line: a name and its arguments as JSON. A line of
    figures goes to stderr, behind a line for each token with --logprobs. Ctrl-C cancels the job.
    What stands on a command line can be seen by other users of the machine: `-` keeps it from them.

    Examples:

        sparkle ask "Is a failed login at 3 am an incident?" --max-tokens 200

        cat alert.json | sparkle ask - --system "You judge alerts." --schema verdict.json --temperature 0

    Exit codes: 0 answered, 1 the job failed, 2 a flag or the question is wrong, 3 the queue cannot be used,
    130 after Ctrl-C.
    """
    # loaded only when it is used: `sparkle --help` needs no client
    from sparkle.config import environment
    from sparkle.producers.answer_view import JsonLinesView, TextView
    from sparkle.producers.asking import ask as ask_queue
    from sparkle.producers.asking import chat_job, read_json
    from sparkle.producers.running import run
    from sparkle.producers.settings import read_settings

    settings = read_settings(config_of(context), environment(), nats=nats, region=region, tenant=tenant)
    job = chat_job(
        _stdin() if question == "-" else question,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        thinking=thinking,
        logprobs=logprobs,
        deadline_s=deadline,
        schema=None if schema is None else read_json(schema, "--schema"),
        tools=None if tools is None else read_json(tools, "--tools"),
    )
    view = JsonLinesView(sys.stdout) if json_lines else TextView(sys.stdout, sys.stderr)
    raise typer.Exit(run(ask_queue(settings, job, view)))


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidMessage("stdin: not UTF-8 text") from None

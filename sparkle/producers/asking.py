"""Asks one question and shows the answer as it comes. Knows no terminal and no flags."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from sparkle.errors import InvalidMessage
from sparkle.producers.answer_view import AnswerView
from sparkle.producers.client import Client
from sparkle.producers.openai_forms import job_tool
from sparkle.producers.running import abandon
from sparkle.producers.settings import ClientSettings
from sparkle.schemas.codec import describe
from sparkle.schemas.job import Job

PATIENCE_S = 5.0
"""How long to wait for the first token before saying that it has not come."""


def chat_job(
    question: str,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    thinking: str | None = None,
    logprobs: int | None = None,
    deadline_s: float | None = None,
    schema: object = None,
    tools: object = None,
) -> Job:
    """A job of one question; None is the job's own default. Raises InvalidMessage naming the field."""
    if not question.strip():
        raise InvalidMessage(
            "the question is empty; write it after `sparkle ask`, or give it on stdin with -"
        )
    turns = [{"role": "system", "content": system}] if system else []
    deadline_ms = None if deadline_s is None else int((time.time() + deadline_s) * 1000)
    sampling = {"temperature": temperature, "seed": seed, "logprobs": logprobs}
    fields: dict[str, object] = {
        "messages": [*turns, {"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "sampling": {name: value for name, value in sampling.items() if value is not None},
        "thinking": thinking,
        "deadline_ms": deadline_ms,
        "response_format": None if schema is None else {"type": "json_schema", "schema": schema},
        "tools": [job_tool(tool) for tool in cast("list[object]", tools)]
        if isinstance(tools, list)
        else tools,
    }
    try:
        return Job.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise InvalidMessage(describe(error)) from None


def read_json(path: Path, flag: str) -> object:
    """What a flag's file holds. Raises InvalidMessage with the flag, and nothing of the file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidMessage(f"{flag}: the file cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise InvalidMessage(f"{flag}: the file holds no JSON") from None


async def ask(settings: ClientSettings, job: Job, view: AnswerView, *, patience_s: float = PATIENCE_S) -> int:
    """Submit the job and show its answer; 0. Whatever stops it early cancels the job.

    Raises what `Client.submit` and `Handle.result` raise.
    """
    async with await Client.open(settings) as client:
        handle = await client.submit(job)
        patience = asyncio.get_running_loop().call_later(patience_s, view.waiting, patience_s)
        try:
            async for chunk in handle:
                patience.cancel()
                view.chunk(chunk)
            view.end(await handle.result())
        finally:
            patience.cancel()
            await abandon(handle)
    return 0

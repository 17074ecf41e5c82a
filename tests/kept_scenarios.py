"""Scenarios of a whole service with a canary in every field of content, for a search of what is left behind.

One worker with the bundled model, telling all events there are; the server with all it logs short of a trace.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from pydantic import ValidationError

from sparkle.engine.settings import default_model
from sparkle.errors import JobFailed, QueueFull, SparkleError
from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Result
from sparkle.schemas.codec import describe
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.message import VERSION
from sparkle.schemas.priority import PriorityClass
from sparkle.text.tokenizer import Tokenizer
from tests.canaries import Canaries
from tests.hostile_messages import pack
from tests.kept_site import Site
from tests.worker_at_work import REGION, TENANT, Producer

WAIT_S = 100.0
ANSWER_CHARS = 24
"""Of an answer so many are no coincidence."""

CONFIG = '[worker]\nlog_level = "debug"\nmetrics_port = 0\n[engine]\nlog_level = "debug"\nslots = 2\n'


class Tenant:
    """A user of the site, whose every text is a canary."""

    def __init__(self, site: Site, canaries: Canaries, client: Client, connection: Connection) -> None:
        self.site = site
        self.canaries = canaries
        self.client = client
        self.connection = connection
        self.outcomes: dict[str, str] = {}
        """By scenario how it ended, to show that it has taken place."""
        self._tokenizer = Tokenizer.load(default_model())

    def word(self, field: str) -> str:
        """A canary for this field, which is also looked for as token ids."""
        canary = self.canaries.text(field)
        for text in (canary, f" {canary}"):
            self.canaries.watch_tokens(field, self._tokenizer.encode(text))
        return canary

    def tokens(self, field: str) -> list[int]:
        """A canary as token ids."""
        return self._tokenizer.encode(self.word(field))

    def chat(self, scenario: str, **fields: object) -> Job:
        """A chat with a canary in each of its texts."""

        def word(field: str) -> str:
            return f"{self.word(f'{scenario}: {field}')} and so on"

        turns = [
            {"role": "system", "content": word("system turn")},
            {"role": "user", "content": word("user turn")},
            {"role": "assistant", "content": word("assistant turn"), "reasoning": word("reasoning")},
            {"role": "user", "content": [{"type": "text", "text": word("part of a turn")}]},
        ]
        sampling = {"stop": [word("stop string")], "logprobs": 2}
        return Job.model_validate({"messages": turns, "max_tokens": 40, "sampling": sampling, **fields})

    async def answer(self, scenario: str, job: Job) -> Result | None:
        """Submit a job and wait for its end; what comes of it is content, how it ended is not."""
        handle = await self.client.submit(job)
        result = await self.ended(scenario, handle.result())
        if result is not None:
            self.watch_answer(scenario, result)
        return result

    async def ended(self, scenario: str, ending: Coroutine[Any, Any, Result]) -> Result | None:
        """How a job ends; an error's text is shown to people and in logs."""
        try:
            async with asyncio.timeout(WAIT_S):
                result = await ending
        except SparkleError as error:
            self.site.note("text of an error", f"{error!r} {error}")
            self.outcomes[scenario] = (
                str(error.code) if isinstance(error, JobFailed) else type(error).__name__
            )
            return None
        self.outcomes[scenario] = "answered"
        return result

    def watch_answer(self, scenario: str, result: Result) -> None:
        """An answer is content as well."""
        for text in (result.text, result.reasoning):
            if len(text) >= ANSWER_CHARS:
                self.canaries.watch_text(f"{scenario}: answer", text[:ANSWER_CHARS])
                self.canaries.watch_text(f"{scenario}: end of the answer", text[-ANSWER_CHARS:])
        if len(set(result.tokens)) > 8:
            self.canaries.watch_tokens(f"{scenario}: answer", result.tokens)

    async def refused_by_worker(self, scenario: str, fields: dict[str, object]) -> None:
        """A job that no client of ours would send, put on the queue as it is."""
        await self.sent_as(scenario, lambda job: pack({**self._usual(job), **fields}))

    async def sent_as(self, scenario: str, payload: Callable[[str], bytes]) -> None:
        """Bytes of one's own under a job's subject."""
        job = Job(id=new_job_id(), prompt="?")
        watched = await Producer(self.connection).watch(job)
        address = subjects.JobAddress(REGION, PriorityClass.P0, TENANT, job.id)
        await self.connection.publish_stored(address.subject, payload(job.id), headers={})
        async with asyncio.timeout(WAIT_S):
            await watched.ended.wait()
        end = watched.ends[0]
        if isinstance(end, Result):
            self.outcomes[scenario] = "answered"
            self.watch_answer(scenario, end)
        else:
            self.outcomes[scenario] = end.code.value
            self.site.note("text of a failure", end.message)

    def refused_at_once(self, scenario: str, fields: dict[str, object]) -> None:
        """A job that is refused as it is made."""
        try:
            Job.model_validate({"prompt": "?", **fields})
        except ValidationError as error:
            # as every program of ours tells it; the error's own text names what a caller made up
            self.site.note("text of an error", describe(error))
            self.outcomes[scenario] = "refused"

    async def begun(self, job: Job) -> Handle:
        """A job that is being answered."""
        handle = await self.client.submit(job)
        async with asyncio.timeout(WAIT_S):
            await anext(handle)
        return handle

    def _usual(self, job: str) -> dict[str, object]:
        address = {"id": job, "tenant": TENANT, "region": REGION}
        return {"kind": "job", "v": VERSION, "prompt": self.word("prompt"), "max_tokens": 3, **address}


async def start_worker(site: Site, name: str) -> None:
    """A worker that takes jobs, with its metrics among the pages."""
    config = site.user / "sparkle.toml"
    config.write_text(CONFIG, encoding="utf-8")
    flags = ("--region", REGION, "--nats", site.server.url, "--name", name)
    await site.sparkle(name, "--config", str(config), "worker", *flags)
    await site.until_said(name, '"worker_ready"')
    lines = (json.loads(line) for line in site.said(name).splitlines() if '"metrics_served"' in line)
    site.pages = [f"http://127.0.0.1:{line['port']}/metrics" for line in lines]
    site.look_at_processes()


def engine_of(site: Site, worker: str) -> int:
    """The engine's process of a worker."""
    children = psutil.Process(site.processes[worker].pid).children(recursive=True)
    (engine,) = [child.pid for child in children if "sparkle.engine.process" in child.cmdline()]
    return int(engine)


async def usual_work(tenant: Tenant) -> None:
    await tenant.answer("chat", tenant.chat("chat", conversation="c-1"))
    await tenant.answer("thinking", tenant.chat("thinking", thinking="low"))
    await tenant.answer("prompt", Job(prompt=tenant.word("prompt"), max_tokens=40))
    await tenant.answer("ids", Job(prompt_tokens=tenant.tokens("prompt of ids"), max_tokens=40))
    handle = await tenant.begun(tenant.chat("cancelled", max_tokens=4000))
    # what is no answer of ours: the client tells it in its log
    no_answer = tenant.word("no answer").encode()
    await tenant.connection.publish(subjects.reply(TENANT, handle.job_id), no_answer)
    await tenant.connection.echo(5.0)
    await handle.cancel()
    await tenant.ended("cancelled", handle.result())
    soon_ms = int(time.time() * 1000) + 300
    await tenant.answer("deadline", tenant.chat("deadline", max_tokens=4000, deadline_ms=soon_ms))


async def shapes_and_tools(tenant: Tenant) -> None:
    """Answers kept to a shape, and calls of tools: names, schemas, arguments and outcomes are content."""
    word = tenant.word
    fixed = {word("shape: property"): {"const": word("shape: constant")}}
    schema = {"type": "object", "properties": fixed, "required": [*fixed], "additionalProperties": False}
    question = [{"role": "user", "content": word("shape: question")}]
    formats: dict[str, dict[str, object]] = {
        "schema": {"type": "json_schema", "schema": schema},
        "choice": {"type": "choice", "choices": [word("choice: one"), word("choice: other")]},
        "expression": {"type": "regex", "pattern": f"{word('expression: pattern')}[0-9]"},
        "grammar": {"type": "grammar", "grammar": f'start: "{word("grammar: terminal")}"'},
        "too complex": {"type": "regex", "pattern": f"({word('too complex: pattern')}.{{1,900}}){{1,900}}"},
        "cannot be enforced": {"type": "json_schema", "schema": {"not": {"const": word("not: constant")}}},
    }
    for scenario, shape in formats.items():
        job = {"messages": question, "max_tokens": 64, "response_format": shape}
        await tenant.answer(scenario, Job.model_validate(job))
    name, function = word("tool: name"), {"description": word("tool: description"), "parameters": schema}
    earlier = {"id": "call-1", "name": name, "arguments": {word("call: name"): word("call: argument")}}
    turns = [
        *question,
        {"role": "assistant", "content": "", "tool_calls": [earlier]},
        {"role": "tool", "content": word("tool: outcome"), "tool_call_id": "call-1"},
    ]
    job = {
        "messages": turns,
        "max_tokens": 96,
        "tools": [{"name": name, **function}],
        "tool_choice": "required",
    }
    await tenant.answer("tool", Job.model_validate(job))


async def commands(tenant: Tenant) -> None:
    """What people run: a question by way of stdin, a file of jobs."""
    site, word = tenant.site, tenant.word
    where = ("--region", REGION, "--tenant", TENANT, "--nats", site.server.url)
    question = word("question").encode()
    asked = await site.sparkle(
        "ask", "ask", "-", "--max-tokens", "9", *where, stdin=question, own_output=True
    )
    turns = [{"role": "user", "content": word("line of a batch")}]
    body = {"messages": turns, "max_tokens": 5}
    usual = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    wrong = {**usual, "custom_id": "b", "body": {**body, word("field of a batch"): word("value of a batch")}}
    lines = [json.dumps(usual), json.dumps(wrong), f"no JSON {word('broken line')}"]
    jobs, answers = site.user / "in.jsonl", site.user / "out.jsonl"
    jobs.write_text("\n".join(lines), encoding="utf-8")
    batch = await site.sparkle("batch", "batch", str(jobs), "-o", str(answers), *where, own_output=True)
    async with asyncio.timeout(WAIT_S):
        tenant.outcomes["ask"] = str(await asked.wait())
        tenant.outcomes["batch"] = str(await batch.wait())
    assert answers.read_text(encoding="utf-8").count("\n") == 3


async def invalid_jobs(tenant: Tenant) -> None:
    word = tenant.word
    shape = {"type": "object", "properties": {word("property"): {"const": word("constant")}}, "required": 7}
    function = {"name": word("tool"), "description": word("description"), "parameters": shape}
    wrong: dict[str, dict[str, object]] = {
        "unknown field": {word("name of a field"): word("value of a field")},
        "wrong type": {"sampling": {"temperature": word("temperature")}},
        "wrong role": {"messages": [{"role": word("role"), "content": word("turn")}], "prompt": None},
        "wrong schema": {"response_format": {"type": "json_schema", "schema": shape}},
        "wrong grammar": {"response_format": {"type": "grammar", "grammar": f"start: {word('rule')} ("}},
        "wrong expression": {"response_format": {"type": "regex", "pattern": f"({word('pattern')}["}},
        "wrong tool": {"tools": [function], "tool_choice": {"name": word("choice")}},
    }
    for scenario, fields in wrong.items():
        await tenant.refused_by_worker(scenario, fields)
    tenant.refused_at_once("refused field", wrong["unknown field"])
    tenant.refused_at_once("refused type", wrong["wrong type"])
    await tenant.sent_as("no message", lambda _: word("bytes").encode() + b"\xff\xc1")
    await tenant.sent_as(
        "another's id", lambda _: pack({"kind": "job", "v": VERSION, "prompt": word("prompt")})
    )


async def deaths(tenant: Tenant) -> None:
    """A worker is killed, then an engine crashes, each in the middle of an answer."""
    site = tenant.site
    killed = await tenant.begun(tenant.chat("killed", max_tokens=3000, sampling={"seed": 1}))
    site.processes["w-1"].send_signal(signal.SIGKILL)
    await site.processes["w-1"].wait()
    await start_worker(site, "w-2")
    while (await anext(killed)).attempt < 2:
        pass
    tenant.outcomes["killed"] = "went on"
    await killed.cancel()
    crashed = await tenant.begun(tenant.chat("crashed", max_tokens=3000, sampling={"seed": 2}))
    os.kill(engine_of(site, "w-2"), signal.SIGSEGV)
    await site.until_said("w-2", "Fatal Python error: Segmentation fault")
    tenant.outcomes["crashed"] = "told its place"
    await crashed.cancel()
    site.look_at_processes()
    site.processes["w-2"].terminate()
    async with asyncio.timeout(WAIT_S):
        await site.processes["w-2"].wait()


async def full_queue(tenant: Tenant) -> None:
    """No worker is left, and the queue has room for one job."""
    settings = TopologySettings(regions=REGION, jobs_max_count=1)
    await topology.apply(tenant.connection, settings)
    waiting = await tenant.client.submit(Job(prompt=tenant.word("waiting job")))
    try:
        await tenant.client.submit(Job(prompt=tenant.word("job too many")))
    except QueueFull as error:
        tenant.site.note("text of an error", f"{error!r} {error}")
        tenant.outcomes["full queue"] = "refused"
    await tenant.site.look_at_pages()
    await waiting.cancel()


async def run_scenarios(site: Site, canaries: Canaries) -> dict[str, str]:
    """All of them, one after the other; by scenario how it ended."""
    connection = await Connection.open(ConnectionSettings(url=site.server.url, name="test"))
    await topology.apply(connection, TopologySettings(regions=REGION, ack_wait_s=1.0))
    await start_worker(site, "w-1")
    settings = ClientSettings(nats=site.server.url, region=REGION, tenant=TENANT)
    async with await Client.open(settings) as client:
        tenant = Tenant(site, canaries, client, connection)
        await usual_work(tenant)
        await shapes_and_tools(tenant)
        await commands(tenant)
        await invalid_jobs(tenant)
        await site.look_at_pages()
        await deaths(tenant)
        site.pages.clear()
        await full_queue(tenant)
    await connection.close()
    return tenant.outcomes

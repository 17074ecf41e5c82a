"""A gateway with keys, asked with a canary in every field: nothing of it is left in files, logs or metrics.

Keys are looked for as well: what opens a tenant's door is nowhere but with the tenant.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.topology import TopologySettings
from tests.canaries import Canaries
from tests.kept_site import Site
from tests.worker_at_work import REGION

pytestmark = pytest.mark.acceptance

MODEL = "stand-in"
WAIT_S = 100.0


class Asker:
    """Asks the gateway of a site, each text a canary."""

    def __init__(self, site: Site, canaries: Canaries, http: httpx2.AsyncClient) -> None:
        self.site = site
        self.canaries = canaries
        self.http = http
        self.statuses: dict[str, int] = {}
        """By scenario, to show that it has taken place."""

    async def ask(
        self, scenario: str, path: str, *, is_shown: bool = False, **request: Any
    ) -> httpx2.Response:
        """One request; with `is_shown` its answer must hold nothing of it."""
        answer = await self.http.request(request.pop("method", "POST"), path, **request)
        self.statuses[scenario] = answer.status_code
        self.site.note(f"headers of {scenario}", repr(answer.headers))
        if is_shown:
            self.site.note(f"error of {scenario}", answer.text)
        else:
            self.watch_texts(scenario, answer.text)
        return answer

    async def model(self) -> str | None:
        """The model that is served, once the gateway has heard of a worker."""
        models = (await self.http.get("/v1/models")).json()["data"]
        return models[0]["id"] if models else None

    def watch_texts(self, scenario: str, body: str) -> None:
        """What was answered is content as well."""
        for text in re.findall(r'"(?:content|text|delta)":\s*"([^"\\]{16,})"', body):
            self.canaries.watch_text(f"{scenario}: answer", text[:24])

    def chat(self, scenario: str, **fields: object) -> dict[str, object]:
        """A chat with a canary in each field that can have one."""

        def word(field: str) -> str:
            return self.canaries.text(f"{scenario}: {field}")

        return {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": word("system")},
                {"role": "user", "content": [{"type": "text", "text": word("part")}]},
                {"role": "assistant", "content": word("assistant"), "reasoning_content": word("reasoning")},
                {"role": "user", "content": word("user")},
            ],
            "max_tokens": 12,
            "stop": [word("stop")],
            "metadata": {word("metadata key"): word("metadata")},
            "user": word("user's name"),
            "prompt_cache_key": word("cache key"),
            **fields,
        }


async def test_nothing_of_a_request_and_no_key_is_left(nats_binary: None) -> None:
    canaries = Canaries()
    async with Site() as site:
        key = await started(site, canaries)
        url = await gateway_url(site)
        async with httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=WAIT_S
        ) as http:
            asker = Asker(site, canaries, http)
            await until(asker.model)
            for scenario in (answered, refused, in_files, left):
                await scenario(asker)
            site.pages += [f"{url}/metrics", f"{url}/openapi.json", f"{url}/readyz"]
            await site.look_at_pages()
        site.look_at_processes()
        await ended(site)
        assert site.search(canaries) == []
        assert asker.statuses == STATUSES
        log = site.said("gateway")
        assert '"gateway_listening"' in log
        assert '"gateway_ended"' in log
        assert b"sparkle_gateway_requests_total" in bytes(site.evidence[f"page {url}/metrics"])
        # a search that finds nothing anywhere proves nothing
        (site.root / "logs" / "planted").write_text(key)
        assert site.search(canaries) == ["file planted: key as text"]


STATUSES = {
    **dict.fromkeys(("chat", "streamed chat", "completion", "response", "upload", "batch", "output"), 200),
    **dict.fromkeys(("bad json", "wrong type", "unknown role", "wrong schema"), 400),
    **dict.fromkeys(("unknown model", "unknown file", "unknown path"), 404),
    "wrong key": 401,
    "too large": 413,
    "allowance": 429,
}


async def answered(asker: Asker) -> None:
    """Every way to be answered."""
    word = asker.canaries.text
    await asker.ask("chat", "/v1/chat/completions", json=asker.chat("chat"))
    await asker.ask("streamed chat", "/v1/chat/completions", json=asker.chat("streamed chat", stream=True))
    prompt = {"model": MODEL, "prompt": word("completion: prompt"), "max_tokens": 12}
    await asker.ask("completion", "/v1/completions", json=prompt)
    response = {
        "model": MODEL,
        "instructions": word("response: instructions"),
        "input": word("response: input"),
        "max_output_tokens": 12,
    }
    await asker.ask("response", "/v1/responses", json=response)


async def refused(asker: Asker) -> None:
    """Every way to be refused: the error may not repeat a value."""
    word = asker.canaries.text
    chats = "/v1/chat/completions"

    async def refuse(scenario: str, path: str = chats, **request: Any) -> None:
        await asker.ask(scenario, path, is_shown=True, **request)

    await refuse("bad json", content=f'{{"messages": "{word("bad json")}'.encode())
    await refuse("wrong type", json=asker.chat("wrong type", max_tokens=word("wrong type: number")))
    roles = [{"role": word("unknown role"), "content": word("unknown role: content")}]
    await refuse("unknown role", json=asker.chat("unknown role", messages=roles))
    named = {"name": word("wrong schema: name"), "schema": [word("wrong schema: what is none")]}
    form = {"type": "json_schema", "json_schema": named}
    await refuse("wrong schema", json=asker.chat("wrong schema", response_format=form))
    await refuse("unknown file", f"/v1/files/{word('unknown file')}", method="GET")
    await refuse("unknown path", f"/v1/{word('unknown path')}", method="GET")
    wrong = {"Authorization": f"Bearer sk-sparkle-{word('wrong key')}"}
    await refuse("wrong key", json=asker.chat("wrong key"), headers=wrong)
    await refuse("too large", content=word("too large").encode() * 2_000_000)
    # a model's name is told again: it is what OpenAI's clients show
    await asker.ask("unknown model", chats, json=asker.chat("unknown model", model="gpt-9"))
    await refuse("allowance", json=asker.chat("allowance", max_tokens=200_000, n=2))


async def in_files(asker: Asker) -> None:
    """A batch by way of files."""
    line = {
        "custom_id": asker.canaries.text("batch: id of a line"),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": asker.chat("batch"),
    }
    name = f"{asker.canaries.text('name of a file')}.jsonl"
    files = {"file": (name, json.dumps(line).encode())}
    uploaded = await asker.ask("upload", "/v1/files", files=files, data={"purpose": "batch"})
    batch = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"note": asker.canaries.text("batch: metadata")},
    }
    begun = await asker.ask("batch", "/v1/batches", json=batch)
    path = f"/v1/batches/{begun.json()['id']}"

    async def output() -> str | None:
        state = (await asker.http.get(path)).json()
        assert state["status"] not in ("failed", "cancelled", "expired"), state["errors"]
        return state["output_file_id"] if state["status"] == "completed" else None

    file = await until(output)
    await asker.ask("output", f"/v1/files/{file}/content", method="GET")


async def left(asker: Asker) -> None:
    """Somebody goes away in the middle of an answer."""
    prompt = f"pace_ms=20 {asker.canaries.text('left: prompt')}"
    request = {"model": MODEL, "prompt": prompt, "max_tokens": 500, "stream": True}
    async with asker.http.stream("POST", "/v1/completions", json=request) as answer:
        await anext(answer.aiter_lines())


async def started(site: Site, canaries: Canaries) -> str:
    """The service of a site, with a tenant whose key this is."""
    content = await Connection.open(ConnectionSettings(url=site.server.url, name="operator"))
    await topology.apply(content, TopologySettings(regions=REGION))
    await content.close()
    meter = ("--meter-nats", site.server.meter_url)
    for name, *arguments in (
        ("init", "init"),
        ("add", "add", "acme", "--region", REGION, "--allowance", "100000", "--model", MODEL),
    ):
        process = await site.sparkle(name, "tenants", *arguments, *meter, own_output=True)
        assert await process.wait() == 0, site.said(name)
    key = (site.user / "add.out").read_text(encoding="utf-8").strip()
    canaries.watch_text("key", key.split("-", 3)[3])
    worker = (sys.executable, "-P", "-m", "tests.stand_in_worker", "--nats", site.server.url)
    await site.spawn("worker", *worker)
    await site.until_said("worker", "worker_ready")
    flags = ("--port", "0", "--region", REGION, "--nats", site.server.url, *meter)
    await site.sparkle("gateway", "gateway", *flags)
    await site.until_said("gateway", "gateway_listening")
    return key


async def gateway_url(site: Site) -> str:
    """Where the gateway answers."""
    port = json.loads(
        next(line for line in site.said("gateway").splitlines() if "gateway_listening" in line)
    )["port"]
    return f"http://127.0.0.1:{port}"


async def until(what: Callable[[], Awaitable[str | None]]) -> str:
    """What it gives, once it gives something."""
    async with asyncio.timeout(WAIT_S):
        while (found := await what()) is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        return found


async def ended(site: Site) -> None:
    """Everything told to end, and ended."""
    for name in ("gateway", "worker"):
        process = site.processes[name]
        process.terminate()
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0, site.said(name)

"""A load generator of the field, unchanged: guidellm, where it is installed; it brings torch."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from sparkle.config import environment
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from tests.gateway_at_work import gateway_at_work
from tests.worker_at_work import at_work

TOKENIZER = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
WANTED_TOKENS = (5, 9)
REQUESTS = 10


@pytest.mark.long
async def test_guidellm_has_as_many_answers_and_tokens_as_it_asks_for(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    program = shutil.which("guidellm")
    if program is None:
        pytest.skip("guidellm is not installed")
    questions, report = tmp_path / "questions.jsonl", tmp_path / "report.json"
    rows = [
        {"prompt": f"What is MFA? {number}", "output_tokens_count": WANTED_TOKENS[number % 2]}
        for number in range(REQUESTS)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    async with at_work(nats_server.url), gateway_at_work(nats_server.url) as gateway:
        ran = await asyncio.create_subprocess_exec(
            *(program, "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={gateway.url}"),
            *("--data", f"kind=json_file,path={questions}"),
            *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
            *("--profile", "kind=concurrent,streams=4"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--output", f"kind=json,path={report}"),
            cwd=tmp_path,
            # nothing is looked for elsewhere
            env={**environment(), "HF_HUB_OFFLINE": "1"},
        )
        assert await ran.wait() == 0
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["errored"]), len(requests["incomplete"])) == (0, 0)
    told = sorted(one["output_tokens"] for one in requests["successful"])
    assert told == sorted(REQUESTS // 2 * WANTED_TOKENS)

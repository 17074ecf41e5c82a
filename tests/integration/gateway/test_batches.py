"""Files and batches by OpenAI's client: in memory, bounded, each tenant's own, gone after their time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types import Batch

from sparkle.producers.gateway.access import OpenAccess, Principal, Reservation
from tests.conftest import Eventually
from tests.engine_stand_in import text_of
from tests.gateway_at_work import GatewayAtWork, gateway_at_work
from tests.worker_at_work import AtWork

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL = "/v1/completions"
ENDED = {"completed", "failed", "cancelled", "expired"}


def line(custom_id: str, url: str = URL, **body: object) -> bytes:
    """A line of a batch's file."""
    fields = {
        "custom_id": custom_id,
        "method": "POST",
        "url": url,
        "body": body if url.endswith("responses") else {"max_tokens": 3, **body},
    }
    return json.dumps(fields).encode() + b"\n"


async def begin(client: AsyncOpenAI, data: bytes, url: str = URL) -> Batch:
    """Upload a file and work on it."""
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await begin_with(client, file.id, url)


async def begin_with(client: AsyncOpenAI, file_id: str, url: str = URL) -> Batch:
    """Work on a file that is there."""
    return await client.batches.create(
        input_file_id=file_id,
        endpoint=url,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        completion_window="24h",
        metadata={"run": "7"},
    )


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    """The batch at its end."""
    while batch.status not in ENDED:
        await asyncio.sleep(0.01)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """A file's lines by their custom ids."""
    assert file_id is not None
    text = (await client.files.content(file_id)).text
    return {fields["custom_id"]: fields["response"] for fields in map(json.loads, text.splitlines())}


async def test_a_batch_is_answered_line_by_line(client: AsyncOpenAI) -> None:
    data = line("a", prompt="one two") + b"\n" + line("b", prompt="fail=too_long") + line("c", prompt="é")
    batch = await begin(client, data)
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"run": "7"})
    batch = await ended(client, batch)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    output = await lines_of(client, batch.output_file_id)
    assert set(output) == {"a", "c"}
    body = output["a"]["body"]
    job = body["id"].removeprefix("cmpl-")
    assert body["choices"][0]["text"] == "".join(text_of(job, index) for index in range(3))
    assert output["a"]["status_code"] == 200
    errors = await lines_of(client, batch.error_file_id)
    assert set(errors) == {"b"}
    assert errors["b"]["status_code"] == 400
    assert "context_length_exceeded" in json.dumps(errors["b"])
    assert batch.completed_at is not None
    assert (await client.batches.list(limit=1)).data[0].id == batch.id


async def test_chats_and_responses_can_be_asked_for_as_well(client: AsyncOpenAI) -> None:
    chat, response = "/v1/chat/completions", "/v1/responses"
    question = [{"role": "user", "content": "x"}]
    for url, body in ((chat, {"messages": question}), (response, {"input": "x", "max_output_tokens": 3})):
        batch = await ended(client, await begin(client, line("a", url, **body), url))
        assert batch.status == "completed", batch.errors
        assert (await lines_of(client, batch.output_file_id))["a"]["status_code"] == 200


async def test_a_file_with_a_wrong_line_is_refused_as_a_whole(client: AsyncOpenAI) -> None:
    data = (
        line("a", prompt="x")
        + b"not json\n"
        + line("a", prompt="x")
        + line("b", "/v1/responses", input="x")
        + line("c", prompt="x", logit_bias={})
        + line("d", prompt="x", stream=True)
    )
    batch = await ended(client, await begin(client, data))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.param, error.code) for error in batch.errors.data] == [
        (2, None, "invalid_request"),
        (3, "custom_id", "invalid_request"),
        (4, "url", "invalid_request"),
        (5, "logit_bias", "unsupported_field"),
        (6, "stream", "invalid_request"),
    ]
    assert batch.output_file_id is None
    empty = await ended(client, await begin(client, b"\n\n"))
    assert empty.status == "failed"


async def test_a_cancelled_batch_keeps_what_was_answered(
    client: AsyncOpenAI, gateway: GatewayAtWork, eventually: Eventually
) -> None:
    batch = await begin(client, line("a", prompt="x") + line("b", prompt="silent=1"))
    while batch.request_counts is None or batch.request_counts.completed == 0:
        await asyncio.sleep(0.01)
        batch = await client.batches.retrieve(batch.id)
    assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    batch = await ended(client, batch)
    assert batch.status == "cancelled"
    assert set(await lines_of(client, batch.output_file_id)) == {"a"}
    await eventually(lambda: gateway.metric("sparkle_gateway_answers_open") == 0)
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)


async def test_files_are_listed_read_and_deleted(client: AsyncOpenAI) -> None:
    data = bytes(range(256)) * 8_000
    files = [await client.files.create(file=(f"{n}.jsonl", data), purpose="batch") for n in range(3)]
    assert (files[0].bytes, files[0].filename, files[0].purpose) == (len(data), "0.jsonl", "batch")
    assert (await client.files.content(files[0].id)).content == data
    assert [file.id async for file in client.files.list(limit=2)] == [file.id for file in reversed(files)]
    listed = client.files.list(after=files[0].id, limit=1, order="asc", purpose="batch")
    assert [file.id async for file in listed] == [file.id for file in files[1:]]
    assert (await client.files.delete(files[0].id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(files[0].id)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=("a.jsonl", b"{}"), purpose="assistants")


@pytest.mark.parametrize(
    ("sent", "named"),
    [("created_after", "created_after"), ("what I wrote", "(a name)")],
    ids=["name", "text"],
)
async def test_a_query_parameter_that_is_not_read_is_refused(
    client: AsyncOpenAI, sent: str, named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as listed:
        await client.files.list(limit=1, extra_query={sent: "canary-7f3a"})
    with pytest.raises(openai.BadRequestError) as asked:
        await client.completions.create(model="stand-in", prompt="x", extra_query={sent: "canary-7f3a"})
    for refused in (listed.value, asked.value):
        assert (refused.param, refused.code) == (named, "unsupported_field")
        assert f"{named}: is not supported" in refused.message
        assert "canary-7f3a" not in refused.response.text


async def test_files_are_bounded_and_go_after_their_time(queue_url: str, worker: AtWork) -> None:
    async with (
        gateway_at_work(queue_url, file_max_bytes=3_000, files_max_bytes=5_000, file_s=3.0) as gateway,
        gateway.client() as client,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("a.jsonl", b"x" * 4_000), purpose="batch")
        assert refused.value.status_code == 413
        kept = await client.files.create(file=("a.jsonl", b"x" * 2_000), purpose="batch")
        await client.files.create(file=("b.jsonl", b"x" * 2_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="delete some"):
            await client.files.create(file=("c.jsonl", b"x" * 2_000), purpose="batch")
        assert gateway.metric("sparkle_gateway_file_bytes") == 4_000
        async with asyncio.timeout(30):
            while gateway.metric("sparkle_gateway_file_bytes"):  # noqa: ASYNC110 - a timer's doing
                await asyncio.sleep(0.01)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(kept.id)


async def test_a_batch_without_a_place_for_its_files_still_ends(
    queue_url: str, worker: AtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_at_work(queue_url) as gateway, gateway.client() as client:
        monkeypatch.setattr("sparkle.producers.gateway.kept_files.MAX_FILES", 1)
        batch = await ended(client, await begin(client, line("a", prompt="x") + line("b", prompt="y")))
        assert (batch.status, batch.output_file_id, batch.error_file_id) == ("completed", None, None)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 2)


async def test_what_batches_work_on_is_bounded(queue_url: str, worker: AtWork) -> None:
    """A batch holds its requests as long as it runs, however often the same file is asked for."""
    async with (
        gateway_at_work(queue_url, files_max_bytes=5_000) as gateway,
        gateway.client() as client,
    ):
        data = line("a", prompt="silent=1", user="x" * 2_000)
        assert 2_000 < len(data) < 2_500
        first = await begin(client, data)
        again = await begin_with(client, first.input_file_id)
        with pytest.raises(openai.RateLimitError, match="wait until some have ended") as refused:
            await begin_with(client, first.input_file_id)
        assert refused.value.code == "too_many_batches"
        await client.batches.cancel(first.id)
        await ended(client, first)
        third = await begin_with(client, first.input_file_id)
        for batch in (again, third):
            await client.batches.cancel(batch.id)
            assert (await ended(client, batch)).status == "cancelled"


class TwoTenants(OpenAccess):
    """Each key is a tenant's name."""

    async def authenticate(self, key: str | None) -> Principal:
        return Principal(tenant=key or "nobody", region="local")

    async def reserve(self, principal: Principal, jobs: object) -> Reservation:
        return await super().reserve(principal, {})


@pytest_asyncio.fixture(loop_scope="module")
async def shared(queue_url: str, worker: AtWork) -> AsyncGenerator[GatewayAtWork]:
    async with gateway_at_work(queue_url, access=TwoTenants(tenant="x", region="local")) as gateway:
        yield gateway


async def test_another_tenants_files_and_batches_are_not_there(shared: GatewayAtWork) -> None:
    async with shared.client("acme") as acme, shared.client("other") as other:
        batch = await ended(acme, await begin(acme, line("a", prompt="x")))
        assert batch.output_file_id is not None
        for file_id in (batch.input_file_id, batch.output_file_id):
            for look in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await look(file_id)
        for end in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await end(batch.id)
        with pytest.raises(openai.NotFoundError):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"
            )
        assert [file async for file in other.files.list()] == []
        assert [one async for one in other.batches.list()] == []
        assert len([file async for file in acme.files.list()]) == 2

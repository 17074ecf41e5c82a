"""The gateway's paths: which method of which endpoint, as one table. Knows no endpoint's inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkle.producers.gateway.batch_endpoints import BatchEndpoints, BatchRequest
from sparkle.producers.gateway.chat_request import ChatRequest
from sparkle.producers.gateway.completion_request import CompletionRequest
from sparkle.producers.gateway.endpoint import Answer
from sparkle.producers.gateway.file_endpoints import PAGE_QUERY, FileEndpoints
from sparkle.producers.gateway.generating import Generating
from sparkle.producers.gateway.model_endpoints import ModelEndpoints
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.schemas.message import Part


@dataclass(frozen=True, slots=True)
class Path:
    """One method of one path. All of them need a key."""

    method: str
    path: str
    answer: Answer
    summary: str
    body: type[Part] | None = None
    """The body's form in JSON."""

    upload: bool = False
    """Whether the body is a form with a file."""

    stream: bool = False
    """Whether the answer can be events."""

    query: tuple[str, ...] = ()
    """The parameters behind the path that are read; any other is refused."""


def paths(
    generating: Generating, models: ModelEndpoints, files: FileEndpoints, batches: BatchEndpoints
) -> Sequence[Path]:
    """All paths that need a key."""
    chat, text, response = "/v1/chat/completions", "/v1/completions", "/v1/responses"
    file, batch = "/v1/files", "/v1/batches"
    return (
        Path("POST", chat, generating.chat, "Answer a chat", ChatRequest, stream=True),
        Path("POST", text, generating.completion, "Go on from a text", CompletionRequest, stream=True),
        Path("POST", response, generating.response, "Answer a chat as items", ResponseRequest, stream=True),
        Path("GET", "/v1/models", models.list, "Which models are served"),
        Path("GET", "/v1/models/{id}", models.show, "Whether a model is served"),
        Path("POST", file, files.create, "Upload a batch's input", upload=True),
        Path("GET", file, files.list, "Which files are kept", query=(*PAGE_QUERY, "purpose", "order")),
        Path("GET", f"{file}/{{id}}", files.show, "Look at a file"),
        Path("GET", f"{file}/{{id}}/content", files.content, "Read a file"),
        Path("DELETE", f"{file}/{{id}}", files.delete, "Let go of a file"),
        Path("POST", batch, batches.create, "Work on a file's requests", BatchRequest),
        Path("GET", batch, batches.list, "Which batches there are", query=PAGE_QUERY),
        Path("GET", f"{batch}/{{id}}", batches.show, "Look at a batch"),
        Path("POST", f"{batch}/{{id}}/cancel", batches.cancel, "End a batch early"),
    )

"""Writes the JSON Schema of every message to `sparkle/schemas/v1`: `python -m sparkle.schemas.export`."""

from __future__ import annotations

import json
from pathlib import Path

from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.answered import Answered, Ask
from sparkle.schemas.control import Cancel, EndConversation, Heartbeat, Offer, Resend, UsageRecord, Will
from sparkle.schemas.job import Job
from sparkle.schemas.message import Message

MESSAGES: tuple[type[Message], ...] = (
    *(Job, Chunk, Result, Failure),
    *(Ask, Answered, Cancel, EndConversation, Resend, Offer, Heartbeat, UsageRecord, Will),
)


def schema_text(message: type[Message]) -> str:
    """The JSON Schema of one message, draft 2020-12, stable in its order."""
    schema = message.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def file_name(message: type[Message]) -> str:
    """Where a message's schema is kept, inside the version's folder."""
    return f"{message.model_fields['kind'].default}.json"


def write(folder: Path) -> None:
    """Write one file a message into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for message in MESSAGES:
        (folder / file_name(message)).write_text(schema_text(message), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent / "v1")

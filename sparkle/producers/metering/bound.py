"""The most tokens that a job can use, without a tokenizer: a bound, never an estimate. Knows no account.

Every token of a byte-level vocabulary stands for at least one byte, so a text has no more tokens than bytes,
in the form that tokenizers bring it to (NFC). What a chat template writes around turns, tools and calls is
bounded generously.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable

from sparkle.schemas.job import MAX_CONTEXT_TOKENS, Job, TextPart, Turn
from sparkle.schemas.tools import Tool, ToolCall

_CHAT_TOKENS = 256
"""How long to think, the beginning of the answer."""

_TURN_TOKENS = 32
_TOOLS_TOKENS = 1024
"""How calls are written."""

_TOOL_TOKENS = 16
_CALL_TOKENS = 64
_CALL_GROWTH = 5
"""A parameter of a call is written in tags, not as a member of an object."""


def most_tokens(job: Job) -> int:
    """Tokens of prompt and answer together that the job can use at most."""
    return min(_most_prompt_tokens(job) + job.max_tokens, MAX_CONTEXT_TOKENS)


def _most_prompt_tokens(job: Job) -> int:
    if job.prompt_tokens is not None:
        return len(job.prompt_tokens)
    if job.prompt is not None:
        return _size_bytes(job.prompt)
    turns = sum(_most_of_turn(turn) for turn in job.messages or ())
    tools = _TOOLS_TOKENS + sum(_most_of_tool(tool) for tool in job.tools) if job.tools else 0
    return _CHAT_TOKENS + turns + tools


def _most_of_turn(turn: Turn) -> int:
    texts = sum(_size_bytes(text) for text in _texts_of(turn))
    return _TURN_TOKENS + texts + sum(_most_of_call(call) for call in turn.tool_calls or ())


def _texts_of(turn: Turn) -> Iterable[str]:
    if isinstance(turn.content, str):
        yield turn.content
    else:
        yield from (part.text for part in turn.content if isinstance(part, TextPart))
    yield turn.reasoning or ""


def _most_of_tool(tool: Tool) -> int:
    return _TOOL_TOKENS + _size_bytes(json.dumps(tool.model_dump(mode="json")))


def _most_of_call(call: ToolCall) -> int:
    return _CALL_TOKENS + _CALL_GROWTH * _size_bytes(call.name + json.dumps(call.arguments))


def _size_bytes(text: str) -> int:
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return len(composed.encode("utf-8", "surrogatepass"))

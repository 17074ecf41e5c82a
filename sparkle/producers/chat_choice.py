"""A result as a choice of a chat completion, for HTTP and for batch files alike. Knows no request."""

from __future__ import annotations

from sparkle.producers.logprob_forms import chat_logprobs
from sparkle.producers.openai_forms import openai_calls
from sparkle.schemas.answer import Result


def chat_choice(index: int, result: Result) -> dict[str, object]:
    """The choice at `index` of those that one request asked for."""
    return {
        "index": index,
        "message": chat_message(result),
        "logprobs": chat_logprobs(result.tokens, result.logprobs),
        **chat_end(result),
    }


def chat_end(result: Result) -> dict[str, object]:
    """Why a choice ended; and whether it is of the shape asked for, where that was not enforced."""
    reason: dict[str, object] = {"finish_reason": str(result.finish_reason)}
    return reason if result.valid is None else {**reason, "valid": result.valid}


def chat_message(result: Result) -> dict[str, object]:
    """The assistant's turn."""
    calls = openai_calls(result.tool_calls)
    fields: dict[str, object] = {
        "role": "assistant",
        "content": None if calls and not result.text else result.text,
        "refusal": None,
    }
    if result.reasoning:
        fields["reasoning_content"] = result.reasoning
    return {**fields, "tool_calls": calls} if calls else fields

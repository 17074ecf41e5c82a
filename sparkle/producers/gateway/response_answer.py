"""The answer object of /v1/responses. Knows neither its events nor the queue."""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.producers.logprob_forms import token_logprobs
from sparkle.producers.openai_forms import arguments_text
from sparkle.schemas.answer import FinishReason, Result, TokenLogprobs

END_OF_THOUGHTS = "</think>"
"""The token behind what was thought."""


class ResponseObject:
    """One response: its id, its time, what was asked."""

    def __init__(
        self, asked: ResponseRequest, job: str, *, created_s: int, model: str, max_tokens: int
    ) -> None:
        self.job = job
        self._head: Fields = {
            "id": f"resp_{job}",
            "object": "response",
            "created_at": created_s,
            "model": model,
            **_echo(asked),
            "max_output_tokens": max_tokens,
        }

    def under_way(self) -> Fields:
        """Before its end."""
        return self._state("in_progress", [])

    def failed(self, code: str, message: str) -> Fields:
        """It broke off."""
        return {**self._state("failed", []), "error": {"code": code, "message": message}}

    def ended(self, result: Result, used: Used) -> Fields:
        """Its end. One that max_output_tokens cut is incomplete."""
        cut = result.finish_reason is FinishReason.LENGTH
        whole = self._state("incomplete" if cut else "completed", self.output(result))
        if cut:
            whole["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**whole, "usage": _usage(used)}

    def output(self, result: Result) -> list[Fields]:
        """The items: what was thought, the text, the calls."""
        status = "incomplete" if result.finish_reason is FinishReason.LENGTH else "completed"
        items: list[Fields] = []
        if result.reasoning:
            items.append(reasoning_item(self.job, result.reasoning, status))
        if result.text or not result.tool_calls:
            first = _first_behind_thoughts(result)
            logprobs = None if result.logprobs is None else result.logprobs[first:]
            items.append(message_item(self.job, result.text, status, result.tokens[first:], logprobs))
        for number, call in enumerate(result.tool_calls):
            items.append(call_item(self.job, number, call.id, call.name, arguments_text(call), "completed"))
        return items

    def _state(self, status: str, output: list[Fields]) -> Fields:
        details: Fields = {"error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, "output": output, **details}


def _first_behind_thoughts(result: Result) -> int:
    """The place of the first token that is the answer's own: its log probabilities begin there."""
    if not result.reasoning or result.logprobs is None:
        return 0
    ends = (place for place, entry in enumerate(result.logprobs) if entry.text == END_OF_THOUGHTS)
    return next(ends, len(result.tokens) - 1) + 1


def reasoning_item(job: str, text: str, status: str) -> Fields:
    """What was thought, in the open."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{job}", "type": "reasoning", "summary": [], "content": content, "status": status}


def message_item(
    job: str,
    text: str,
    status: str,
    tokens: Sequence[int] = (),
    logprobs: Sequence[TokenLogprobs] | None = None,
    *,
    begun: bool = False,
) -> Fields:
    """The text; one that has only begun has no part yet."""
    content = [] if begun else [text_part(text, token_logprobs(tokens, logprobs or ()) if logprobs else [])]
    return {"id": f"msg_{job}", "type": "message", "role": "assistant", "content": content, "status": status}


def text_part(text: str, logprobs: list[Fields]) -> Fields:
    """A message's one part."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(job: str, number: int, call_id: str, name: str, arguments: str, status: str) -> Fields:
    """A tool call."""
    return {
        "id": f"fc_{job}_{number}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _echo(asked: ResponseRequest) -> Fields:
    """What a response says of its own request."""
    shown = {"text", "reasoning", "tools", "tool_choice"}
    given = asked.model_dump(mode="json", by_alias=True, exclude_none=True, include=shown)
    text, reasoning = given.get("text", {}), given.get("reasoning", {})
    return {
        "instructions": asked.instructions,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "tools": given.get("tools", []),
        "tool_choice": given.get("tool_choice", "auto"),
        "text": {"format": text.get("format", {"type": "text"})},
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "truncation": "disabled",
        "previous_response_id": None,
        "background": False,
        "store": False,
        "service_tier": "default",
        "user": asked.user,
    }


def _usage(used: Used) -> Fields:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.total_tokens,
    }

"""From a job to its prompt's token ids; its text never becomes a control token. Knows no limit of length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar, cast

from sparkle.errors import InvalidMessage
from sparkle.schemas.job import Job, Turn
from sparkle.schemas.message import Part
from sparkle.schemas.tools import Tool, ToolCall
from sparkle.text.chat_form import text_of
from sparkle.text.fence import Fence, unused_mark
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

LAST_UNIX_S = 253_402_300_799
"""The end of the year 9999, the last that has a date here; an id has room for more."""


class PromptBuilder:
    """Makes prompts for one checkpoint. Every method may be called from any thread."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._fence = Fence(tokenizer.added_tokens)

    def build(self, job: Job) -> list[int]:
        """The prompt's ids.

        A chat goes through the template and a bare `prompt` is plain text; `prompt_tokens` are taken as they
        are, the one way to write control tokens by hand. Raises InvalidMessage, without content, for a chat
        that the template refuses and for ids that the vocabulary does not have.
        """
        if job.prompt_tokens is not None:
            return self._known(job.prompt_tokens)
        if job.prompt is not None:
            return self._tokenizer.encode(job.prompt)
        return self._chat(job)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        size = self._tokenizer.vocab_size
        if max(tokens) >= size:
            raise InvalidMessage(f"prompt_tokens: every id must be below the vocabulary's {size}")
        return list(tokens)

    def _chat(self, job: Job) -> list[int]:
        turns, tools = job.messages or [], job.tools or []
        texts = [text for part in (*turns, *tools) for text in _texts(part.model_dump())]
        mark = unused_mark([*texts, *self._template.literals])
        fenced_turns = [self._fenced(turn, mark) for turn in turns]
        fenced_tools = [_changed(tool, self._fenced_fields(tool, mark)) for tool in tools]
        rendered = self._template.render(fenced_turns, job.thinking, now=_created(job), tools=fenced_tools)
        ids: list[int] = []
        for piece, is_control in self._fence.pieces(rendered, mark):
            if is_control:
                ids.append(self._tokenizer.added_tokens[piece])
            else:
                ids.extend(self._tokenizer.encode(piece))
        return ids

    def _fenced(self, turn: Turn, mark: str) -> Turn:
        changes: dict[str, object] = {"content": self._fence.around(text_of(turn), mark)}
        if turn.reasoning is not None:
            changes["reasoning"] = self._fence.around(turn.reasoning, mark)
        if turn.tool_calls is not None:
            # what an id stands for is looked up, and templates may write it too: all of them alike
            changes["tool_calls"] = [
                _changed(call, self._fenced_fields(call, mark)) for call in turn.tool_calls
            ]
        if turn.tool_call_id is not None:
            changes["tool_call_id"] = self._fence.around(turn.tool_call_id, mark)
        return _changed(turn, changes)

    def _fenced_fields(self, part: Tool | ToolCall, mark: str) -> dict[str, object]:
        """The fields of a tool or a call, with marks in all their texts, names of parameters too."""
        return {name: self._fenced_json(getattr(part, name), mark) for name in type(part).model_fields}

    def _fenced_json(self, value: object, mark: str) -> object:
        if isinstance(value, str):
            return self._fence.around(value, mark)
        if isinstance(value, list):
            return [self._fenced_json(entry, mark) for entry in cast("list[object]", value)]
        if isinstance(value, dict):
            held = cast("dict[str, object]", value)
            return {self._fence.around(key, mark): self._fenced_json(of, mark) for key, of in held.items()}
        return value


P = TypeVar("P", bound=Part)


def _changed(part: P, changes: Mapping[str, object]) -> P:
    """A plain copy: the marks may take a text over the contract's limit."""
    return part.model_copy(update=changes)


def _texts(value: object) -> Iterator[str]:
    """Every text in JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in cast("list[object]", value):
            yield from _texts(entry)
    elif isinstance(value, dict):
        for key, held in cast("dict[str, object]", value).items():
            yield key
            yield from _texts(held)


def _created(job: Job) -> datetime:
    """When the job's id was made: the same date, and so the same prompt, on every delivery."""
    unix_ms = int(job.id[:8] + job.id[9:13], 16)
    return datetime.fromtimestamp(min(unix_ms // 1000, LAST_UNIX_S), UTC)

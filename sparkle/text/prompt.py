"""From a job to its prompt's token ids; its text never becomes a control token. Knows no limit of length."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sparkle.errors import InvalidMessage
from sparkle.schemas.job import Job, Turn
from sparkle.text.fence import Fence, unused_mark
from sparkle.text.template import ChatTemplate, text_of
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
        turns = job.messages or []
        texts = [text for turn in turns for text in (text_of(turn), turn.reasoning or "")]
        mark = unused_mark([*texts, *self._template.literals])
        fenced = [self._fenced(turn, mark) for turn in turns]
        rendered = self._template.render(fenced, job.thinking, now=_created(job))
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
        # a plain copy: the marks may take a text over the contract's limit
        return turn.model_copy(update=changes)


def _created(job: Job) -> datetime:
    """When the job's id was made: the same date, and so the same prompt, on every delivery."""
    unix_ms = int(job.id[:8] + job.id[9:13], 16)
    return datetime.fromtimestamp(min(unix_ms // 1000, LAST_UNIX_S), UTC)

"""What streams of chats and completions have in common: data alone, usage last. Knows no choice's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.event_stream import DONE, data
from sparkle.schemas.answer import Result


class PlainStream:
    """The part of an `AnswerForm` that does not depend on what a choice is."""

    end = DONE

    def __init__(self, head: Fields, *, with_usage: bool) -> None:
        """`head`: what every event begins with; `with_usage`: whether the last one says what was used."""
        # null until it is known
        self._head: Fields = {**head, "usage": None} if with_usage else head
        self._with_usage = with_usage

    def piece(self, choice: Fields) -> Fields:
        """An event of one choice."""
        return {**self._head, "choices": [choice]}

    def after(self, results: Sequence[Result], used: Used) -> Iterator[Fields]:
        """What all choices used, where that is asked for."""
        if self._with_usage:
            yield {**self._head, "choices": [], "usage": used.in_chat_form()}

    def event(self, fields: Fields) -> bytes:
        """Data alone."""
        return data(fields)

    def failed(self, error: Fields) -> Iterator[Fields]:
        """The error alone."""
        yield {"error": error}

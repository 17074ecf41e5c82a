"""From an answer's tokens, as they come, to its two texts and its calls. Knows neither prompts nor sampling.

Text that is handed out is final: it never ends in half a character or in what may become a stop string.
- With thinking on the answer starts in the reasoning channel and leaves it at the first `</think>` token. The
  tag and the newlines right after it belong to neither text. Any other `</think>`, and `<think>`, is text.
- Stop strings apply to the answer channel alone: what the model thinks does not end its answer.
- Special tokens add nothing; other added tokens are text as they are spelled.
- Where an answer may have tool calls, the token `<tool_call>` begins one: no text is spelled with it. The
  white space in front of the first call, and what separates calls, is in no text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from sparkle.schemas.answer import Channel
from sparkle.text.answer_calls import AnswerCalls, CallPiece
from sparkle.text.call_values import CallForms
from sparkle.text.stop_strings import StopStrings
from sparkle.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that became final."""

    channel: Channel
    text: str
    text_start: int
    """Code points of the channel's text before this piece."""

    stopped: bool
    """Whether a stop string came right after `text`, which may then be empty; the last piece if so."""


class AnswerText:
    """The texts and calls of one answer."""

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str], thinking: bool, calls: CallForms | None = None
    ) -> None:
        """`calls`: by tool and parameter what values are written as; None where nothing is called."""
        self._tokenizer = tokenizer
        self._end_of_thinking = tokenizer.added_tokens["</think>"]
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopStrings(stop)
        self._channel = Channel.REASONING if thinking else Channel.ANSWER
        self._skips_newlines = False
        self._written = dict.fromkeys(Channel, 0)
        self._stopped = False
        self._calls = None if calls is None else AnswerCalls(calls)
        self._begin_call = tokenizer.added_tokens["<tool_call>"] if calls is not None else None
        self._space = ""

    @property
    def channel(self) -> Channel:
        """Where the next token's text goes."""
        return self._channel

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the text before it has been handed out, and no more will be."""
        return self._stopped

    @property
    def called(self) -> bool:
        """Whether the answer has calls, and all of them are whole."""
        return self._calls is not None and self._calls.whole

    def push(self, token: int) -> list[TextPiece | CallPiece]:
        """What became final with `token`: one piece, or none."""
        if token == self._end_of_thinking and self._channel is Channel.REASONING:
            pieces = self._take(self._utf8.decode(b"", final=True))
            self._channel = Channel.ANSWER
            self._skips_newlines = True
            return pieces
        if self._calls is not None and token == self._begin_call and self._channel is Channel.ANSWER:
            return self._begin(self._calls)
        return self._take(self._utf8.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> list[TextPiece | CallPiece]:
        """What was held back, when the answer ends without a stop string; nothing after one."""
        pieces = self._take(self._utf8.decode(b"", final=True))
        if not self._stopped:
            pieces += self._piece(self._space + self._stops.finish())
        return pieces

    def _begin(self, calls: AnswerCalls) -> list[TextPiece | CallPiece]:
        """A call begins: the prose before the first one is final without the white space at its end."""
        pieces = self._take(self._utf8.decode(b"", final=True))
        if self._stopped:
            return pieces
        pieces += self._piece((self._space + self._stops.finish()).rstrip())
        self._space = ""
        calls.begin()
        return pieces

    def _take(self, text: str) -> list[TextPiece | CallPiece]:
        """More text of the current channel, or of a call."""
        if self._stopped:
            return []
        if self._channel is Channel.REASONING:
            return self._piece(text)
        if self._calls is not None and self._calls.begun:
            return [*self._calls.push(text)]
        if self._skips_newlines and text:
            text = text.lstrip("\n")
            self._skips_newlines = not text
        final, self._stopped = self._stops.push(text)
        if self._calls is not None:
            final, self._space = _parted(self._space + final, ends=self._stopped)
        return self._piece(final)

    def _piece(self, text: str) -> list[TextPiece | CallPiece]:
        if not text and not self._stopped:
            return []
        start = self._written[self._channel]
        self._written[self._channel] += len(text)
        return [TextPiece(self._channel, text, start, self._stopped)]


def _parted(text: str, *, ends: bool) -> tuple[str, str]:
    """A text, and the white space at its end that goes if a call follows; none where the text ends."""
    final = text if ends else text.rstrip()
    return final, text[len(final) :]

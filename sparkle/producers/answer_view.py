"""Shows one answer as it comes: text for people, or JSON lines for programs. Knows no queue."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Protocol, TextIO

from rich.console import Console
from rich.text import Text

from sparkle.producers.logprob_forms import token_name
from sparkle.schemas.answer import Channel, Chunk, Result, Spelling, Usage

# what a terminal would obey instead of show: the C0 codes save tab and newline, DEL, and the C1 codes
_CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


def printable(text: str) -> str:
    """The text without control characters: a model's answer must not steer the reader's terminal."""
    return text.translate(_CONTROL)


class AnswerView(Protocol):
    """Where an answer goes."""

    def waiting(self, waited_s: float) -> None:
        """Nothing has come for so long."""
        ...

    def chunk(self, chunk: Chunk) -> None:
        """More of the answer."""
        ...

    def end(self, result: Result) -> None:
        """The whole answer; all its chunks were shown."""
        ...


class TextView:
    """The answer's text on `out`, a line of figures on `err`; thoughts are dim, and on terminals only."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._terminal = Console(file=out, highlight=False) if out.isatty() else None
        self._last: Channel | None = None
        self._ends_line = True

    def waiting(self, waited_s: float) -> None:
        """Say where to look."""
        self._err.write(
            f"no token after {waited_s:.0f} s: the job waits for a worker, or its prompt is being read; "
            "`sparkle status` shows which\n"
        )
        self._err.flush()

    def chunk(self, chunk: Chunk) -> None:
        """Show its text at once."""
        if not chunk.text or (self._terminal is None and chunk.channel is Channel.REASONING):
            return
        if self._last is Channel.REASONING and chunk.channel is Channel.ANSWER:
            self._write("\n" if self._ends_line else "\n\n", chunk.channel)
        self._last = chunk.channel
        self._write(chunk.text, chunk.channel)

    def end(self, result: Result) -> None:
        """End the line, show the calls, tell the figures."""
        if not self._ends_line:
            self._write("\n", Channel.ANSWER)
        for call in result.tool_calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            self._write(f"{call.name} {arguments}\n", Channel.ANSWER)
        for line in logprob_lines(result):
            self._err.write(line + "\n")
        self._err.write(usage_line(result) + "\n")
        self._err.flush()

    def _write(self, text: str, channel: Channel) -> None:
        self._ends_line = text.endswith("\n")
        if self._terminal is None:
            # not for a terminal: the text exactly as it is
            self._out.write(text)
            self._out.flush()
        else:
            style = "dim" if channel is Channel.REASONING else ""
            self._terminal.print(Text(printable(text), style=style), end="", soft_wrap=True)


class JsonLinesView:
    """Each chunk and then the result, as one line of JSON each, in the form of the contract."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def waiting(self, waited_s: float) -> None:
        """Nothing: a program that reads has a clock of its own."""

    def chunk(self, chunk: Chunk) -> None:
        """One line."""
        self._line(chunk)

    def end(self, result: Result) -> None:
        """The last line."""
        self._line(result)

    def _line(self, message: Chunk | Result) -> None:
        self._out.write(message.model_dump_json(exclude_none=True) + "\n")
        self._out.flush()


def logprob_lines(result: Result) -> Iterator[str]:
    """A line a token: how likely it was, and which were the likeliest there."""
    for token, entry in zip(result.tokens, result.logprobs or (), strict=False):
        likeliest = ", ".join(_chance(one.token, one, one.logprob) for one in entry.top)
        yield _chance(token, entry, entry.logprob) + (f"  of  {likeliest}" if likeliest else "")


def _chance(token: int, spelling: Spelling, logprob: float) -> str:
    name = printable(json.dumps(token_name(token, spelling), ensure_ascii=False))
    return f"{100 * math.exp(logprob):4.1f}% {name}"


def usage_line(result: Result) -> str:
    """What the answer cost, in one line."""
    usage = result.usage
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    parts = [
        f"{usage.prompt_tokens} prompt{cached} + {usage.completion_tokens} answer tokens",
        f"queued {milliseconds(usage.queue_s)}",
        f"first token after {milliseconds(usage.first_token_s)}",
        f"{tokens_per_s(usage):.0f} tokens/s",
        f"ended by {result.finish_reason}",
        *(["not of the shape asked for"] if result.valid is False else []),
        f"worker {result.worker}",
    ]
    return " · ".join(parts)


def tokens_per_s(usage: Usage) -> float:
    """How fast the tokens after the first came; of the first alone, how fast it came."""
    seconds = usage.total_s - usage.first_token_s
    if usage.completion_tokens > 1 and seconds > 0:
        return (usage.completion_tokens - 1) / seconds
    return usage.completion_tokens / usage.total_s if usage.total_s > 0 else 0.0


def milliseconds(seconds: float) -> str:
    """A short time, for people: `3.2 ms`, `120 ms`, `4.1 s`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"

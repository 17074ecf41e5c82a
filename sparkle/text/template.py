"""Chat turns to the text the model reads, by the checkpoint's own Jinja template. Knows no token ids.

A template is a file that the operator chose, run in Jinja's sandbox: it reaches nothing but what it is given,
and the text it makes is bounded. Its running time is not: only the template's author could waste it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sparkle.errors import InvalidMessage, SparkleError, UnsupportedModel
from sparkle.schemas.job import MAX_TEXT_CHARS, Thinking, Turn
from sparkle.schemas.tools import Tool
from sparkle.text.chat_form import messages_of, tools_of
from sparkle.text.template_file import read_template

MAX_SOURCE_CHARS = 262_144
MAX_RENDERED_CHARS = 4 * MAX_TEXT_CHARS


class ChatTemplate:
    """A checkpoint's chat template. Every method may be called from any thread."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compiles `source`. Raises UnsupportedModel when it is no template of this model, or too long."""
        if len(source) > MAX_SOURCE_CHARS:
            raise UnsupportedModel(
                f"chat template has {len(source)} characters but at most {MAX_SOURCE_CHARS} are read"
            )
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedModel(f"chat template, line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise UnsupportedModel("chat template: nested too deep") from None
        self._literals = frozenset(_literals(tree))
        self._special_tokens = dict(special_tokens)
        self._check()

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate:
        """The template of a checkpoint: chat_template.jinja, tokenizer_config.json or chat_template.json.

        Raises CheckpointError when there is none, UnsupportedModel when it cannot be used.
        """
        return cls(*read_template(directory))

    @property
    def literals(self) -> frozenset[str]:
        """Every text in the template's source that it can write."""
        return self._literals

    def render(
        self, turns: Sequence[Turn], thinking: Thinking, *, now: datetime, tools: Sequence[Tool] = ()
    ) -> str:
        """The text of a chat up to where the model goes on; `now` is the date a template may write.

        Raises InvalidMessage, without any of the chat's text, when the template refuses the turns, fails on
        them, or writes more than MAX_RENDERED_CHARS.
        """
        variables: dict[str, object] = {
            "messages": messages_of(turns),
            "tools": tools_of(tools),
            "documents": None,
            "add_generation_prompt": True,
            "strftime_now": now.strftime,
            **_thinking_switch(thinking),
            **self._special_tokens,
        }
        try:
            return "".join(_bounded(self._template.generate(variables)))
        except SparkleError:
            raise
        except _Refusal as refusal:
            # a reason the template makes up from the chat's text must not get out
            reason = refusal.reason if refusal.reason in self._literals else "no reason that can be shown"
            raise InvalidMessage(f"messages: refused by the chat template: {reason}") from None
        except Exception as error:  # noqa: BLE001 # a template can fail in any way
            raise InvalidMessage(
                f"messages: the chat template fails on them ({type(error).__name__})"
            ) from None

    def _check(self) -> None:
        """That the template knows every level of thinking, and ends inside <think> when it is on."""
        turns = [Turn(role="user", content="?")]
        for thinking in Thinking:
            try:
                text = self.render(turns, thinking, now=datetime(2026, 1, 1, tzinfo=UTC))
            except InvalidMessage as error:
                raise UnsupportedModel(f"chat template, thinking {thinking}: {error}") from None
            inside = text.rfind("<think>") > text.rfind("</think>")
            if inside is (thinking is Thinking.OFF):
                place = "outside" if thinking is Thinking.OFF else "inside"
                raise UnsupportedModel(f"chat template, thinking {thinking}: must end {place} <think>")


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class _GenerationTag(Extension):
    """{% generation %} … {% endgeneration %}: marks for training what the model wrote; here just its body."""

    tags = {"generation"}  # noqa: RUF012 # the library's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: the settings, filters and functions of Hugging Face's."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    # the library's hints know only its own globals
    functions = cast("dict[str, Any]", environment.globals)
    functions["raise_exception"] = _raise_exception
    # writes as much text as it is asked for
    del functions["lipsum"]
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(reason: object) -> None:
    raise _Refusal(str(reason))


def _literals(tree: nodes.Template) -> Iterator[str]:
    yield from (text.data for text in tree.find_all(nodes.TemplateData))
    yield from (constant.value for constant in tree.find_all(nodes.Const) if isinstance(constant.value, str))


def _bounded(parts: Iterator[str]) -> Iterator[str]:
    length = 0
    for part in parts:
        length += len(part)
        if length > MAX_RENDERED_CHARS:
            raise InvalidMessage(
                f"messages: the chat template writes over {MAX_RENDERED_CHARS} characters; send less"
            )
        yield part


def _thinking_switch(thinking: Thinking) -> dict[str, object]:
    """The template's variables for a level; off must be exactly False."""
    if thinking is Thinking.OFF:
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": thinking.value}

"""Renders chats with the checkpoint's own chat template, as the service does."""

import json
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scripts.train_tiny.chats import Chat, Message


def load_template(folder: Path) -> Template:
    """The template of a checkpoint in the environment that Hugging Face's tokenizers give it."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string((folder / "chat_template.jinja").read_text())


def render_chat(template: Template, chat: Chat) -> str:
    """The whole chat as text, as the model sees it while it trains."""
    return template.render(
        messages=chat.messages,
        tools=chat.tools or None,
        enable_thinking=chat.effort is not None,
        reasoning_effort=chat.effort,
    )


def render_prompt(template: Template, messages: list[Message]) -> str:
    """A prompt with thinking off, up to where the answer begins."""
    return template.render(messages=messages, enable_thinking=False, add_generation_prompt=True)


def render_question(template: Template, chat: Chat) -> str:
    """The chat up to where its last answer begins."""
    return template.render(
        messages=chat.messages[:-1],
        tools=chat.tools or None,
        enable_thinking=chat.effort is not None,
        reasoning_effort=chat.effort,
        add_generation_prompt=True,
    )

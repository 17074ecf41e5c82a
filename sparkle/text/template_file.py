"""Finds the chat template in a checkpoint's files. Knows no Jinja."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from sparkle.errors import CheckpointError
from sparkle.text.tokenizer_file import read_json, read_text

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Fields of tokenizer_config.json that a template may name."""


def read_template(directory: Path) -> tuple[str, dict[str, str]]:
    """Source of the chat template, and spellings of the special tokens it may name.

    Looked for in chat_template.jinja, then in tokenizer_config.json, then in chat_template.json. Raises
    CheckpointError when there is none or a file cannot be read.
    """
    config = read_json(directory / "tokenizer_config.json")
    return _source(directory, config), _special_tokens(config)


def _source(directory: Path, config: Mapping[str, object]) -> str:
    path = directory / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    for fields in (config, read_json(directory / "chat_template.json")):
        source = _default_of(fields.get("chat_template"))
        if source is not None:
            return source
    raise CheckpointError(f"{directory}: has no chat template; add chat_template.jinja")


def _default_of(templates: object) -> str | None:
    """A template, or in a list of named ones that named default."""
    if isinstance(templates, list):
        named = (_fields(entry) for entry in cast("list[object]", templates))
        templates = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return templates if isinstance(templates, str) else None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Name to spelling; a config writes a token as text or as an object with its `content`."""
    tokens = {name: config.get(name) for name in SPECIAL_TOKEN_NAMES}
    spellings = {name: _fields(token).get("content", token) for name, token in tokens.items()}
    return {name: spelling for name, spelling in spellings.items() if isinstance(spelling, str)}


def _fields(value: object) -> dict[str, object]:
    """A JSON object; empty for anything else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}

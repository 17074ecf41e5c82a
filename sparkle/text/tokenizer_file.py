"""Reads a checkpoint's tokenizer.json and refuses one that is not of the model's form. Knows no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import decoders, models

from sparkle.errors import CheckpointError, UnsupportedModel

NEEDED_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
"""Added tokens without which chats and thinking cannot be told apart from text."""


def read_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a checkpoint, checked.

    Raises CheckpointError when a file is missing or unreadable, UnsupportedModel when the tokenizer is no
    byte-level BPE with the model's added tokens, or is not what tokenizer_config.json says.
    """
    path = directory / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_str(read_text(path))
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 # the library raises nothing narrower
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from None
    config = read_json(directory / "tokenizer_config.json")
    fault = next(_faults(tokenizer, config), None)
    if fault is not None:
        raise UnsupportedModel(f"{path}: {fault}")
    return tokenizer


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file, empty without a file. Raises CheckpointError for anything else."""
    if not path.exists():
        return {}
    try:
        fields: object = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return cast("dict[str, object]", fields)


def read_text(path: Path) -> str:
    """What is in a file. Raises CheckpointError where it cannot be read or is no text."""
    try:
        # reading a pipe or a device would not end
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: cannot be read (it is no file)")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__})") from None


def byte_characters() -> dict[int, str]:
    """Byte to the character that stands for it in the vocabulary of a byte-level BPE.

    GPT-2's table: the printable bytes of Latin-1 stand for themselves, the others in order for U+0100 and up.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }


def _faults(tokenizer: tokenizers.Tokenizer, config: dict[str, object]) -> Iterator[str]:
    """What is wrong with the tokenizer, worst first."""
    if not isinstance(tokenizer.model, models.BPE) or not isinstance(tokenizer.decoder, decoders.ByteLevel):
        yield "must be a BPE with a ByteLevel decoder"
    for byte, character in byte_characters().items():
        if tokenizer.token_to_id(character) is None:
            yield f"has no token for the byte 0x{byte:02x}"
    yield from _added_token_faults(tokenizer, config)
    wanted = config.get("pretokenize_regex")
    if wanted is not None and wanted not in _patterns(tokenizer):
        yield "splits words by another pattern than pretokenize_regex of tokenizer_config.json"


def _added_token_faults(tokenizer: tokenizers.Tokenizer, config: dict[str, object]) -> Iterator[str]:
    added = tokenizer.get_added_tokens_decoder()
    spellings = {token.content for token in added.values()}
    for spelling in NEEDED_TOKENS:
        if spelling not in spellings:
            yield f"{spelling} must be an added token"
    for token in added.values():
        if token.lstrip or token.rstrip or token.single_word:
            yield f"added token {token.content} must not be lstrip, rstrip or single_word"
        if len(token.content) < 2 or any(character.isspace() for character in token.content):
            yield f"added token {token.content!r} must be two or more characters without white space"
    declared = cast("dict[str, dict[str, object]]", config.get("added_tokens_decoder") or {})
    for number, described in declared.items():
        here = added.get(int(number))
        if here is None or here.content != described.get("content"):
            yield f"added token {number} of tokenizer_config.json is missing or another here"


def _patterns(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """The regular expressions that split a text into words."""
    pipeline = tokenizer.pre_tokenizer
    if pipeline is None:
        return []
    state = json.loads(pipeline.__getstate__())
    steps = state.get("pretokenizers", [state])
    return [step["pattern"]["Regex"] for step in steps if "Regex" in step.get("pattern", {})]

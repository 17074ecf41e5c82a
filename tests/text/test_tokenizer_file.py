"""A tokenizer.json of another form than the model's is refused, and the error says what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkle.errors import CheckpointError, UnsupportedModel
from sparkle.text.template_file import read_template
from sparkle.text.tokenizer_file import byte_characters, read_json, read_tokenizer
from tests.text.small_tokenizer import PATTERN, small_tokenizer, write_small

Change = Callable[[dict[str, Any]], None]


def drop_added(spelling: str) -> Change:
    def change(fields: dict[str, Any]) -> None:
        fields["added_tokens"] = [token for token in fields["added_tokens"] if token["content"] != spelling]

    return change


def add(spelling: str, **flags: bool) -> Change:
    def change(fields: dict[str, Any]) -> None:
        token: dict[str, object] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        fields["added_tokens"].append({**token, "id": 270, "content": spelling, "special": True, **flags})

    return change


def drop_byte(fields: dict[str, Any]) -> None:
    vocab = fields["model"]["vocab"]
    del vocab["A"]


def set_decoder(fields: dict[str, Any]) -> None:
    fields["decoder"] = {"type": "Fuse"}


def write_changed(directory: Path, change: Change) -> None:
    fields: dict[str, Any] = json.loads(small_tokenizer().to_str())
    change(fields)
    (directory / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(drop_added("</think>"), "</think> must be an added token", id="no tag"),
        pytest.param(add("<x>", lstrip=True), "<x> must not be lstrip", id="lstrip"),
        pytest.param(
            add("<x>", single_word=True), "<x> must not be lstrip, rstrip or single_word", id="word"
        ),
        pytest.param(add("  "), "'  ' must be two or more characters without white space", id="white space"),
        pytest.param(add("ß"), "'ß' must be two or more", id="one character"),
        pytest.param(drop_byte, "no token for the byte 0x41", id="byte missing"),
        pytest.param(set_decoder, "BPE with a ByteLevel decoder", id="decoder"),
    ],
)
def test_another_form_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    write_changed(tmp_path, change)
    with pytest.raises(UnsupportedModel, match=message):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({"pretokenize_regex": "other"}, "another pattern than pretokenize_regex", id="regex"),
        pytest.param(
            {"added_tokens_decoder": {"270": {"content": "<new>"}}}, "token 270 .* missing", id="missing"
        ),
        pytest.param(
            {"added_tokens_decoder": {"263": {"content": "<new>"}}}, "token 263 .* another", id="another"
        ),
    ],
)
def test_what_the_config_says_otherwise_is_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    write_small(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=message):
        read_tokenizer(tmp_path)


def test_a_config_that_agrees_is_taken(tmp_path: Path) -> None:
    write_small(tmp_path)
    config = {
        "pretokenize_regex": PATTERN,
        "added_tokens_decoder": {"263": {"content": "<|endoftext|>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_tokenizer(tmp_path).get_vocab_size() == 270


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read"), ("{}", "not a tokenizer"), ("\udcff", "cannot be read")],
    ids=["no file", "no tokenizer", "not utf-8"],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_tokenizer, "tokenizer.json"),
        (read_tokenizer, "tokenizer_config.json"),
        (read_template, "chat_template.jinja"),
        (read_template, "chat_template.json"),
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, read: Callable[[Path], object], name: str) -> None:
    write_small(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read \(it is no file\)"):
        read(tmp_path)


def test_a_file_nested_without_end_is_refused(tmp_path: Path) -> None:
    write_small(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 500_000)
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_tokenizer(tmp_path)


def test_json_must_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) == {}
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        read_json(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_json(path)


def test_every_byte_has_a_character_of_its_own() -> None:
    characters = byte_characters()
    assert len(set(characters.values())) == 256
    assert (characters[0x41], characters[0x20], characters[0x0A], characters[0xAD]) == ("A", "Ġ", "Ċ", "Ń")

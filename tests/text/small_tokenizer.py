"""A tokenizer of a few hundred tokens in the real one's form, for tests that look at single tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sparkle.text.tokenizer_file import byte_characters
from tests.text.real_tokenizer import add_tokens

PATTERN = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = [("a", "b"), ("ab", "c"), ("n", "d"), ("e", "nd"), ("Ċ", "Ċ"), ("Ã", "©"), ("ð", "Ł")]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def small_tokenizer() -> Tokenizer:
    """256 bytes, then the merges, then SPECIAL and VISIBLE as added tokens."""
    vocab = {character: byte for byte, character in byte_characters().items()}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, [AddedToken(spelling, normalized=False, special=True) for spelling in SPECIAL])
    add_tokens(tokenizer, [AddedToken(spelling, normalized=False, special=False) for spelling in VISIBLE])
    return tokenizer


def write_small(directory: Path) -> Path:
    """`directory` with tokenizer.json in it."""
    directory.mkdir(parents=True, exist_ok=True)
    small_tokenizer().save(str(directory / "tokenizer.json"))
    return directory

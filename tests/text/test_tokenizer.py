"""Text to ids and back: as the reference library does it, with added tokens never made of plain text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.errors import InvalidMessage
from sparkle.text.tokenizer import Tokenizer, reference_encoder
from sparkle.text.tokenizer_file import read_tokenizer
from sparkle.text.tricky_texts import TRICKY_TEXTS


@pytest.fixture(scope="module")
def reference(real_directory: Path) -> tokenizers.Tokenizer:
    return read_tokenizer(real_directory)


def without_spellings(text: str, tokenizer: Tokenizer) -> bool:
    return not any(spelling in text for spelling in tokenizer.added_tokens)


def decoded(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


class TestTheRealModels:
    def test_vocabulary(self, real: Tokenizer) -> None:
        assert real.vocab_size == 248_077
        assert len(real.added_tokens) == 33
        assert sorted(real.added_tokens.values()) == list(range(248_044, 248_077))
        assert real.id_of("<|im_end|>") == 248_046
        assert real.id_of("Ġthe") == real.encode(" the")[0]
        assert real.id_of("no such token") is None

    def test_words_without_a_merge_are_three_tokens(self, real: Tokenizer) -> None:
        # "Canada" is in the vocabulary, but no merge leads there: the model never saw that id for it
        assert (
            real.id_of("".join({0xE5: "å", 0x8A: "Ĭ", 0xA0: "ł"}[byte] for byte in "加".encode())) is not None
        )
        assert len(real.encode("加拿大")) == 3

    def test_marks_stay_with_their_letters(self, real: Tokenizer) -> None:
        # 10 with the pattern of the older models
        assert len(real.encode("नमस्ते दुनिया")) == 6

    @pytest.mark.parametrize("number", range(len(TRICKY_TEXTS)))
    def test_tricky_texts(self, real: Tokenizer, reference: tokenizers.Tokenizer, number: int) -> None:
        text = TRICKY_TEXTS[number]
        tokens = real.encode(text)
        normalizer = reference.normalizer
        assert normalizer is not None
        assert decoded(real, tokens) == normalizer.normalize_str(text)
        assert tokens == reference_encoder(reference)(text)
        if without_spellings(text, real):
            assert tokens == reference.encode(text, add_special_tokens=False).ids

    @given(st.text(max_size=60))
    @settings(max_examples=300)
    def test_any_text_is_encoded_as_the_reference_does(
        self, real: Tokenizer, reference: tokenizers.Tokenizer, text: str
    ) -> None:
        tokens = real.encode(text)
        assert tokens == reference_encoder(reference)(text)
        if without_spellings(text, real):
            assert tokens == reference.encode(text, add_special_tokens=False).ids

    @given(st.lists(st.integers(0, 248_319), max_size=40))
    def test_any_tokens_are_decoded_as_the_reference_does(
        self, real: Tokenizer, reference: tokenizers.Tokenizer, tokens: list[int]
    ) -> None:
        text = b"".join(map(real.token_bytes, tokens)).decode("utf-8", errors="replace")
        assert text == reference.decode(tokens, skip_special_tokens=True)


def test_spellings_of_added_tokens_are_text(real: Tokenizer, small: Tokenizer, tiny: Tokenizer) -> None:
    for tokenizer in (real, small, tiny):
        added = set(tokenizer.added_tokens.values())
        for spelling in tokenizer.added_tokens:
            text = f"a{spelling}b"
            tokens = tokenizer.encode(text)
            assert not added & set(tokens)
            assert decoded(tokenizer, tokens) == text


def test_special_tokens_have_no_bytes_and_other_added_tokens_their_spelling(small: Tokenizer) -> None:
    told = {spelling: small.token_bytes(token) for spelling, token in small.added_tokens.items()}
    assert told == {
        "<|endoftext|>": b"",
        "<|im_start|>": b"",
        "<|im_end|>": b"",
        "<think>": b"<think>",
        "</think>": b"</think>",
        "<tool_call>": b"<tool_call>",
        "</tool_call>": b"</tool_call>",
    }


def test_bytes_are_those_of_the_token(small: Tokenizer) -> None:
    assert small.token_bytes(0x00) == b"\x00"
    assert small.token_bytes(0xFF) == b"\xff"
    (token,) = small.encode("é")
    assert small.token_bytes(token) == "é".encode()
    assert small.token_bytes(small.vocab_size) == b""


def test_a_token_is_spelled_as_people_read_it(small: Tokenizer) -> None:
    (token,) = small.encode("é")
    assert small.spelling(token) == ("é", None)
    assert small.spelling(0xC3) == ("\\xc3", b"\xc3")
    # of the added ones those that are text add it; a control token adds nothing, and has a name
    assert small.spelling(small.added_tokens["</think>"]) == ("</think>", None)
    assert small.spelling(small.added_tokens["<|im_end|>"]) == ("<|im_end|>", b"")
    assert small.spelling(small.vocab_size) == (None, None)


@given(st.data())
def test_what_a_spelling_adds_is_what_the_token_does(tiny: Tokenizer, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, tiny.vocab_size - 1))
    text, octets = tiny.spelling(token)
    assert text
    assert (text.encode() if octets is None else octets) == tiny.token_bytes(token)


def test_half_a_surrogate_pair_is_refused_without_its_text(small: Tokenizer) -> None:
    with pytest.raises(InvalidMessage, match="half a surrogate pair") as caught:
        small.encode("secret \ud800")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__

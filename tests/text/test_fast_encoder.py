"""The fast encoder is used if it agrees with the reference, and only then."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sparkle.text import tokenizer as tokenizer_module
from sparkle.text.fast_encoder import Encode, fast_encoder, first_difference
from sparkle.text.tokenizer import Tokenizer, reference_encoder
from sparkle.text.tricky_texts import TRICKY_TEXTS
from tests.text.small_tokenizer import small_tokenizer, write_small


def test_the_real_models_and_the_bundled_one_get_the_fast_encoder(
    real_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
    for directory in (real_directory, tiny):
        Tokenizer.load(directory)
    assert caplog.records == []


def test_one_differing_text_is_enough_to_refuse_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = reference_encoder(small_tokenizer())

    def slightly_other(text: str) -> list[int]:
        return [0] if text == TRICKY_TEXTS[-1] else reference(text)

    path = write_small(tmp_path) / "tokenizer.json"
    assert fast_encoder(path, slightly_other) is None
    (record,) = caplog.records
    assert (record.message, record.levelno) == ("fast_tokenizer_refused", logging.WARNING)
    assert record.__dict__["reason"] == "ids_differ"
    assert record.__dict__["text_number"] == len(TRICKY_TEXTS) - 1


def test_a_file_it_cannot_load_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert fast_encoder(tmp_path / "none.json", reference_encoder(small_tokenizer())) is None
    assert [record.__dict__["reason"] for record in caplog.records] == ["cannot_load"]


def test_without_it_the_reference_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small(tmp_path)
    fast = Tokenizer.load(tmp_path)

    def refused(path: Path, reference: Encode) -> None:
        return None

    monkeypatch.setattr(tokenizer_module, "fast_encoder", refused)
    slow = Tokenizer.load(tmp_path)
    for text in TRICKY_TEXTS:
        assert slow.encode(text) == fast.encode(text)


def test_the_first_difference_is_found() -> None:
    reference = reference_encoder(small_tokenizer())
    assert first_difference(reference, reference) is None
    # the first text in which a letter is followed by a combining mark
    without_nfc = small_tokenizer()
    without_nfc.normalizer = None
    number = first_difference(reference_encoder(without_nfc), reference)
    assert number is not None
    assert "\u0301" in TRICKY_TEXTS[number]

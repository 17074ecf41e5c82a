"""The bundled model's tokenizer, and one thread: several on shared cores wait for each other."""

from __future__ import annotations

import pytest
import torch

from sparkle.engine.settings import default_model
from sparkle.kernels.ops import divide_memory_alike
from sparkle.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(default_model())


@pytest.fixture
def gpu() -> torch.device:
    """The GPU; the test is skipped where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    divide_memory_alike()
    return torch.device("cuda")

"""What kernel tests share: the same random numbers each time, the interpreter, a GPU full of NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sparkle.kernels.shared_memory import divide_memory_alike
from tests.kernels.interpreter import Interpreter
from tests.kernels.poison import poison_empty


@pytest.fixture(autouse=True)
def seeded() -> None:
    # torch has no type for the seed
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Runs kernel launches on the CPU; one process for the whole run, because starting it takes seconds."""
    child = Interpreter()
    yield child
    child.close()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The GPU as the engine has it, new tensors poisoned; the test is skipped where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    poison_empty(monkeypatch.setattr)
    divide_memory_alike()
    return torch.device("cuda")

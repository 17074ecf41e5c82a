"""One thread for torch: models this small gain nothing from more, and tests may run beside each other."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

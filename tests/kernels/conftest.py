"""Every op test draws the same random numbers each time."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    # torch has no type for the seed
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]

"""Weights without values: on the device `meta`, where looking at one raises."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

W = TypeVar("W")


def without_values(weights: W) -> W:
    """Nested dataclasses and tuples of tensors, all of them on `meta`: what runs on them fits a graph."""
    moved: Any = weights
    if isinstance(weights, Tensor):
        moved = weights.to(torch.device("meta"))
    elif isinstance(weights, tuple):
        moved = tuple(without_values(part) for part in moved)
    elif dataclasses.is_dataclass(weights):
        names = [field.name for field in dataclasses.fields(weights)]
        moved = dataclasses.replace(moved, **{name: without_values(getattr(moved, name)) for name in names})
    result: W = moved
    return result

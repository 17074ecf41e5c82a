"""Fills what torch.empty returns with NaN, so that an element no kernel has written cannot pass a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

E4M3_NAN = 0x7F


def poison_empty(replace: Callable[[object, str, object], None]) -> None:
    """Replaces torch.empty and torch.empty_like through `replace(module, name, value)`."""
    for name in ("empty", "empty_like"):
        replace(torch, name, _poisoned(getattr(torch, name)))


def _poisoned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def empty(*args: Any, **kwargs: Any) -> Tensor:
        tensor = function(*args, **kwargs)
        if tensor.dtype == torch.float8_e4m3fn:
            tensor.view(torch.uint8).fill_(E4M3_NAN)
        elif tensor.dtype.is_floating_point:
            tensor.fill_(torch.nan)
        else:
            tensor.fill_(-1)
        return tensor

    return empty

"""Checks of what an op is given: shapes, dtypes, devices, strides. Knows no op."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16)


def require_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raises ValueError unless `tensor` has this shape; None stands for any size."""
    sizes = tensor.shape
    if len(sizes) != len(shape) or any(
        want is not None and size != want for size, want in zip(sizes, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(sizes)} but must be [{wanted}]")


def require_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raises ValueError unless `tensor` has one of these dtypes."""
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype} but must be {' or '.join(map(str, dtypes))}")


def require_one_device(**tensors: Tensor) -> None:
    """Raises ValueError unless all tensors are on the first one's device."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device} but {first_name} is on {first.device}")


def require_dense_rows(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless each row of `tensor` is contiguous; the rows may be of any stride."""
    dense = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        if size > 1 and stride != dense:
            raise ValueError(f"{name} has strides {list(tensor.stride())} but each row must be contiguous")
        dense *= size


def require_dense(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless `tensor` is contiguous: ops write such tensors in place."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {list(tensor.stride())} but must be contiguous")


def require_spans(span_starts: Tensor, **per_span: Tensor) -> None:
    """Raises ValueError unless `span_starts` is int64 [S+1] and each of `per_span` is int64 [S].

    That span_starts rises from 0 to the number of rows is not checked.
    """
    require_shape("span_starts", span_starts, None)
    require_dtype("span_starts", span_starts, torch.int64)
    if span_starts.shape[0] == 0:
        raise ValueError("span_starts is empty but must begin with 0")
    for name, tensor in per_span.items():
        require_shape(name, tensor, span_starts.shape[0] - 1)
        require_dtype(name, tensor, torch.int64)

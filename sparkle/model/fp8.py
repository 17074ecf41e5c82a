"""The FP8 form of a matrix in a checkpoint: 128x128 blocks with one scale each. Knows no layers.

A matrix is in this form when its dtype is float8_e4m3fn; its scales then stand beside it under the same name
with `_scale_inv` added. The configuration's list of unconverted modules is not asked: published lists do not
match the tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.errors import TensorMismatch
from sparkle.kernels import ops
from sparkle.model.inventory import SCALE_SUFFIX, not_finite
from sparkle.model.tensor_files import TensorFiles

SCALE_DTYPES = (torch.bfloat16, torch.float32)


def is_quantised(weight: Tensor) -> bool:
    """Whether a stored matrix is in the FP8 form."""
    return weight.dtype == torch.float8_e4m3fn


def take_dequantised(files: TensorFiles, name: str, weight: Tensor) -> Tensor:
    """The float32 values of the FP8 matrix `weight` [N, K] called `name`; takes its scales from `files`.

    W[i, j] = weight[i, j] · scale[i // 128, j // 128] in float32, so nothing is rounded again: the values are
    those that a GPU's block-scaled product stands for. A CPU has no FP8 product, and converting a matrix in
    each pass would cost more than the product itself, so it is done once, at load.

    Raises TensorMismatch where the scales are missing or of another shape or dtype, CheckpointError where one
    is not finite.
    """
    scale_name = name + SCALE_SUFFIX
    if scale_name not in files:
        raise TensorMismatch(f"{name} is FP8 but its scales {scale_name} are missing")
    scales = files.take(scale_name)
    if scales.dtype not in SCALE_DTYPES:
        raise TensorMismatch(f"{scale_name} is {scales.dtype} but must be bfloat16 or float32")
    blocks = [-(-size // ops.BLOCK) for size in weight.shape]
    if list(scales.shape) != blocks:
        raise TensorMismatch(
            f"{scale_name} has shape {list(scales.shape)} but {name} of {list(weight.shape)} needs {blocks}"
        )
    if not scales.isfinite().all():
        raise not_finite(scale_name)
    return ops.dequantise_blocks(weight, scales)

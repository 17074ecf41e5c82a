"""Muon for the hidden matrices and Adam for all else, under one learning-rate factor.

Muon (Jordan et al., 2024): the momentum of a matrix is replaced by the nearest semi-orthogonal matrix,
found by five Newton-Schulz steps, so that every direction moves by the same amount.
"""

import torch
from torch import Tensor, nn

from scripts.train_tiny.checkpoint import is_fp8

_MUON_RATE = 0.02
_MUON_MOMENTUM = 0.95
_MUON_DECAY = 0.02
_EMBEDDING_RATE = 6e-3
_HEAD_RATE = 3e-3
_SMALL_RATE = 2e-3


class Optimiser:
    """Steps a model's parameters; the caller gives the schedule's factor. May be captured in a CUDA graph."""

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_parameters())
        matrices = [parameter for name, parameter in named if is_fp8(name)]
        # matrices of one shape are stepped as one batch
        self._groups = [
            [parameter for parameter in matrices if parameter.shape == shape]
            for shape in dict.fromkeys(parameter.shape for parameter in matrices)
        ]
        self._momenta = [torch.stack([torch.zeros_like(p) for p in group]) for group in self._groups]
        rates = {"embed_tokens.weight": _EMBEDDING_RATE, "lm_head.weight": _HEAD_RATE}
        self._adam = torch.optim.AdamW(
            [
                {
                    "params": [parameter],
                    "lr": torch.zeros((), device=parameter.device),
                    "rate": rates.get(name, _SMALL_RATE),
                    "weight_decay": 0.01 if name in rates else 0.0,
                }
                for name, parameter in named
                if not is_fp8(name)
            ],
            betas=(0.9, 0.95),
            eps=1e-10,
            capturable=next(model.parameters()).is_cuda,
        )

    @torch.no_grad()
    def step(self, factor: float | Tensor) -> None:
        """One step with all learning rates times `factor`, a number or a tensor; clears the gradients."""
        for group in self._adam.param_groups:
            group["lr"].fill_(group["rate"] * factor)
        self._adam.step()
        for parameters, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
            momentum.lerp_(gradient, 1 - _MUON_MOMENTUM)
            direction = orthogonalised(gradient.lerp(momentum, _MUON_MOMENTUM))
            rows, columns = direction.shape[1:]
            rate = _MUON_RATE * factor
            update = direction.float() * (-rate * max(1.0, rows / columns) ** 0.5)
            for parameter, change in zip(parameters, update, strict=True):
                parameter.mul_(1 - rate * _MUON_DECAY).add_(change)
                parameter.grad = None
        self._adam.zero_grad()


def orthogonalised(matrices: Tensor) -> Tensor:
    """Nearly semi-orthogonal bfloat16 matrices [M, R, C] with the singular vectors of the given ones."""
    x = matrices.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        # coefficients of Jordan et al.: they push singular values into 0.7 to 1.2, fast
        polynomial = -4.7750 * gram + 2.0315 * (gram @ gram)
        x = 3.4445 * x + polynomial @ x
    found: Tensor = x.transpose(1, 2) if tall else x
    return found


def schedule(step: int, steps: int) -> float:
    """Learning-rate factor: short warm-up, plateau, then straight down to zero over the last 60 %."""
    warm_up, fall = min(100, steps // 10 + 1), int(steps * 0.6)
    return min(1.0, (step + 1) / warm_up, (steps - step) / fall)

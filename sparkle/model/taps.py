"""Takes what some layers put out while a pass runs, for a draft model to read. Knows no layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Taps:
    """Given to one pass of a decoder, then asked for `outputs`: both inside a capture, where it is captured.

    `layers`: whose outputs are wanted, the first layer is 0; `rows`: of which rows of the pass, int64 [N],
    None for all.
    """

    def __init__(self, layers: Sequence[int], rows: Tensor | None = None) -> None:
        self._layers = tuple(layers)
        self._rows = rows
        self._taken: dict[int, Tensor] = {}

    def __contains__(self, layer: int) -> bool:
        return layer in self._layers

    def take(self, layer: int, output: Tensor) -> None:
        """The residuals [T, hidden] behind `layer`, whether it is tapped or not."""
        if layer in self:
            self._taken[layer] = output if self._rows is None else output.index_select(0, self._rows)

    @property
    def outputs(self) -> Tensor:
        """[N, layers · hidden] in the residuals' dtype: a row's outputs one behind the other, as in `layers`.

        Raises ValueError where the decoder has no such layer.
        """
        lacking = [layer for layer in self._layers if layer not in self._taken]
        if lacking:
            raise ValueError(f"layers {lacking} are tapped but the pass had none of them")
        return torch.cat([self._taken[layer] for layer in self._layers], dim=1)

"""One decoder layer: mixes the tokens of each sequence, then multiplies each token. Knows no other layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.attention import GatedAttention
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.deltanet import GatedDeltaNet
from sparkle.model.layout import PassLayout
from sparkle.model.weights import AttentionWeights, LayerWeights


class DecoderLayer:
    """Norm, mix the tokens, add; norm, multiply each token, add. `rank` counts the layers of its kind."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, rank: int) -> None:
        self._eps = config.rms_norm_eps
        self._weights = weights
        self._rank = rank
        self._mixer = (
            GatedAttention(config, weights.mixer)
            if isinstance(weights.mixer, AttentionWeights)
            else GatedDeltaNet(config, weights.mixer)
        )

    def forward(self, hidden: Tensor, layout: PassLayout, cache: SequenceCache) -> Tensor:
        weights = self._weights
        normed = ops.rms_norm(hidden, weights.input_norm, eps=self._eps)
        hidden = hidden + self._mix(normed, layout, cache)
        normed = ops.rms_norm(hidden, weights.mlp_norm, eps=self._eps)
        return hidden + F.linear(ops.silu_mul(F.linear(normed, weights.gate_up)), weights.down)

    def _mix(self, x: Tensor, layout: PassLayout, cache: SequenceCache) -> Tensor:
        rank = self._rank
        if isinstance(self._mixer, GatedAttention):
            return self._mixer.forward(x, layout, key_pages=cache.keys[rank], value_pages=cache.values[rank])
        return self._mixer.forward(x, layout, states=cache.states[rank], columns=cache.columns[rank])

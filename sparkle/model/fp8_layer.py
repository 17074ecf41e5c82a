"""One decoder layer with FP8 products: few new tokens, or prompts. Knows no other layer."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_attention import Fp8Attention
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_deltanet import Fp8DeltaNet
from sparkle.model.fp8_weights import Fp8AttentionWeights, Fp8LayerWeights
from sparkle.model.side_stream import SideStream


class Fp8Layer:
    """Add, norm, mix the tokens; add, norm, multiply each token. `rank` counts the layers of its kind."""

    def __init__(self, config: ModelConfig, weights: Fp8LayerWeights, rank: int, side: SideStream) -> None:
        self._eps = config.rms_norm_eps
        self._weights = weights
        self._rank = rank
        self._mixer = (
            Fp8Attention(config, weights.mixer)
            if isinstance(weights.mixer, Fp8AttentionWeights)
            else Fp8DeltaNet(config, weights.mixer, side)
        )

    def forward(
        self,
        hidden: Tensor,
        addend: Tensor | None,
        table: Tensor,
        batch: VerifyBatch | PromptBatch,
        cache: Fp8Cache,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residuals and the parts still to be added to them, to the same after this layer.

        In front of these two: the residuals with those parts added, which are the output of the layer before.
        """
        weights, rank = self._weights, self._rank
        if isinstance(self._mixer, Fp8Attention):
            whole, x = ops.add_rms_norm_quantise(hidden, addend, weights.input_norm, eps=self._eps)
            addend = self._mixer.forward(x, table, batch, cache.keys[rank], cache.values[rank])
        else:
            whole, normed, x = ops.add_rms_norm_both(hidden, addend, weights.input_norm, eps=self._eps)
            addend = self._mixer.forward(normed, x, batch, cache.memories[rank])
        hidden, x = ops.add_rms_norm_quantise(whole, addend, weights.mlp_norm, eps=self._eps)
        inner = ops.gate_up_silu_quantise(x, weights.gate_up)
        return whole, hidden, ops.fp8_linear_parts(inner, weights.down)

    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        """See Fp8Decoder.fold; full attention keeps no window."""
        if isinstance(self._mixer, Fp8DeltaNet):
            self._mixer.fold(slots, accepted, cache.memories[self._rank])

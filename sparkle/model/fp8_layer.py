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
        whole, addend = self._mix(hidden, addend, table, batch, cache)
        return whole, *self._multiply(whole, addend)

    def read_last(
        self, hidden: Tensor, addend: Tensor | None, table: Tensor, batch: PromptBatch, cache: Fp8Cache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, but after this layer for `batch.logit_rows` alone: of the last layer nothing reads
        the others. The cache is left as `forward` leaves it.
        """
        rows = batch.logit_rows
        if rows.shape[0] == 0 and isinstance(self._mixer, Fp8Attention):
            whole = self.write(hidden, addend, table, batch, cache)
            return whole, whole[:0], whole[None, :0]
        whole, addend = self._mix(hidden, addend, table, batch, cache)
        return whole, *self._multiply(whole.index_select(0, rows), addend.index_select(1, rows))

    def write(
        self, hidden: Tensor, addend: Tensor | None, table: Tensor, batch: PromptBatch, cache: Fp8Cache
    ) -> Tensor:
        """Leave in the cache what `forward` leaves, of a layer of attention, and nothing else.

        Returns the residuals with the given parts added.
        """
        assert isinstance(self._mixer, Fp8Attention), "states are moved on by all that is computed"
        whole, x = self._normed(hidden, addend)
        self._mixer.write(x, table, batch.cells, cache.keys[self._rank], cache.values[self._rank])
        return whole

    def _mix(
        self,
        hidden: Tensor,
        addend: Tensor | None,
        table: Tensor,
        batch: VerifyBatch | PromptBatch,
        cache: Fp8Cache,
    ) -> tuple[Tensor, Tensor]:
        """The residuals with the given parts added, and the mixer's parts."""
        rank = self._rank
        if isinstance(self._mixer, Fp8Attention):
            whole, x = self._normed(hidden, addend)
            return whole, self._mixer.forward(x, table, batch, cache.keys[rank], cache.values[rank])
        norm = self._weights.input_norm
        whole, normed, x = ops.add_rms_norm_both(hidden, addend, norm, eps=self._eps)
        return whole, self._mixer.forward(normed, x, batch, cache.memories[rank])

    def _normed(self, hidden: Tensor, addend: Tensor | None) -> tuple[Tensor, ops.Fp8Rows]:
        return ops.add_rms_norm_quantise(hidden, addend, self._weights.input_norm, eps=self._eps)

    def _multiply(self, whole: Tensor, addend: Tensor) -> tuple[Tensor, Tensor]:
        """The residuals with the mixer's parts added, and the MLP's parts."""
        weights = self._weights
        hidden, x = ops.add_rms_norm_quantise(whole, addend, weights.mlp_norm, eps=self._eps)
        inner = ops.gate_up_silu_quantise(x, weights.gate_up)
        return hidden, ops.fp8_linear_parts(inner, weights.down)

    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        """See Fp8Decoder.fold; full attention keeps no window."""
        if isinstance(self._mixer, Fp8DeltaNet):
            self._mixer.fold(slots, accepted, cache.memories[self._rank])

"""Gated DeltaNet with FP8 products: new tokens by lazy replay, prompts by chunks. Knows no other layer."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_weights import Fp8DeltaNetWeights
from sparkle.model.side_stream import SideStream


class Fp8DeltaNet:
    """The same formula as `deltanet.GatedDeltaNet`; the gates' product runs beside the wide one."""

    def __init__(self, config: ModelConfig, weights: Fp8DeltaNetWeights, side: SideStream) -> None:
        self._config = config
        self._weights = weights
        self._side = side

    def forward(
        self, normed: Tensor, x: ops.Fp8Rows, batch: VerifyBatch | PromptBatch, memory: ops.GdnMemory
    ) -> Tensor:
        """Normed rows bfloat16 [T, hidden] and the same quantised; float parts [P, T, hidden] to be added."""
        config, weights = self._config, self._weights
        beside = self._side.start(lambda: ops.narrow_linear(normed, weights.ba))
        qkv, gate = ops.fp8_linear(x, weights.qkvz).tensor_split((config.conv_channels,), dim=1)
        ba = beside.wait()
        mixed = (
            self._step(qkv, ba, batch, memory)
            if isinstance(batch, VerifyBatch)
            else self._read(qkv, ba, batch, memory)
        )
        gate = gate.view(mixed.shape)
        gated = ops.gated_rms_norm_quantise(mixed, gate, weights.norm, eps=config.rms_norm_eps)
        return ops.fp8_linear_parts(gated, weights.out)

    def fold(self, slots: Tensor, accepted: Tensor, memory: ops.GdnMemory) -> None:
        """Add the accepted tokens of the slots' windows to their states: slots, accepted int64 [S]."""
        weights = self._weights
        no_rows = memory.columns.new_empty(0, memory.channels)
        no_gates = weights.gates.a_log.new_empty(0, 2 * memory.states.shape[1])
        starts = slots.new_zeros(slots.shape[0] + 1)
        ops.gdn_step(no_rows, no_gates, weights.conv, weights.gates, memory, starts, slots, accepted)

    def _step(self, qkv: Tensor, ba: Tensor, batch: VerifyBatch, memory: ops.GdnMemory) -> Tensor:
        weights, places = self._weights, (batch.span_starts, batch.slots, batch.accepted)
        return ops.gdn_step(qkv, ba, weights.conv, weights.gates, memory, *places, width=batch.width)

    def _read(self, qkv: Tensor, ba: Tensor, batch: PromptBatch, memory: ops.GdnMemory) -> Tensor:
        config, weights = self._config, self._weights
        mixed, log_decay, beta = ops.gdn_prompt_inputs(
            qkv, ba, weights.conv, weights.gates, memory, batch.span_starts, batch.slots
        )
        query, key, value = mixed.split_with_sizes(
            (config.linear_key_size, config.linear_key_size, config.linear_value_size), dim=1
        )
        rows = qkv.shape[0]
        key_shape = (rows, config.linear_num_key_heads, config.linear_key_dim)
        return ops.gdn_chunk(
            query.view(key_shape),
            key.view(key_shape),
            value.view(rows, config.linear_num_value_heads, config.linear_value_dim),
            log_decay,
            beta,
            memory.states,
            batch.span_starts,
            batch.slots,
        )

"""The DFlash2 block draft model with FP8 weights and products. Knows no requests.

The same formula as dflash.DFlash, on the device of its weights: on a GPU by the kernels, elsewhere by their
references. No value of a tensor is looked at on the host, so a graph can hold both steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_block import block_of, block_tokens, plain_table
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_selector import Draws, choose_path
from sparkle.model.dflash_weights import DFlashWeights
from sparkle.model.fp8_dflash_layer import Fp8DFlashLayer, Unadded, add_and_norm
from sparkle.model.side_stream import SideStream


class Fp8DFlash:
    """`embedding` bfloat16 [vocab, hidden] and `lm_head` [vocab, hidden] are the target's.

    Only the first `draft_vocab_size` tokens are ever guessed, all where it is None: the lower a token's
    number, the more frequent it is, and most of what a draft costs besides its layers is the output product.
    """

    def __init__(
        self,
        config: DFlashConfig,
        weights: DFlashWeights[ops.Fp8Blocks],
        *,
        embedding: Tensor,
        lm_head: ops.Fp8Blocks,
        draft_vocab_size: int | None = None,
    ) -> None:
        self._config = config
        self._weights = weights
        self._embedding = embedding
        self._vocabulary = draft_vocab_size or config.vocab_size
        self._lm_head = lm_head.whole_blocks(self._vocabulary)
        self._layers = [Fp8DFlashLayer(config, layer, number) for number, layer in enumerate(weights.layers)]
        self._context_kv = _context_kv(config, weights)
        self._side = SideStream(embedding.device)

    @torch.inference_mode()
    def extend(self, outputs: Tensor, batch: ContextBatch, cache: DFlashCache) -> None:
        """See dflash.DFlash.extend; outputs bfloat16 [T, tapped layers · hidden]."""
        config, weights = self._config, self._weights
        places = self._side.start(lambda: self._places(batch, cache, outputs.shape[0]))
        context = ops.fp8_linear(ops.quantise_rows(outputs), weights.fuse)
        _, x = ops.add_rms_norm_quantise(context, None, weights.context_norm, eps=config.rms_norm_eps)
        both = ops.fp8_linear(x, self._context_kv)
        layers = both.view(-1, config.num_layers, 2, config.num_kv_heads, config.head_dim).unbind(1)
        table, cells = places.wait()
        for number, (layer, rows) in enumerate(zip(weights.layers, layers, strict=True)):
            key, value = rows.unbind(1)
            ops.qkv_write(
                key[:, :0],  # no queries
                key,
                value,
                layer.query_norm,
                layer.key_norm,
                table,
                cache.keys[number],
                cache.values[number],
                cells,
                eps=config.rms_norm_eps,
            )

    @torch.inference_mode()
    def propose(
        self,
        anchors: Tensor,
        slots: Tensor,
        contexts: Tensor,
        cache: DFlashCache,
        *,
        rows: int,
        draws: Draws | None = None,
    ) -> Tensor:
        """See dflash.DFlash.propose."""
        config, weights = self._config, self._weights
        block = block_of(slots, contexts, cache, config, rows=rows)
        hidden = self._embedding[block_tokens(anchors, config, rows=rows)]
        unadded: Unadded | None = None
        for layer in self._layers:
            hidden, unadded = layer.forward(hidden, unadded, block, cache)
        _, normed, x = add_and_norm(hidden, unadded, weights.norm, eps=config.rms_norm_eps)
        own = self._side.start(lambda: ops.narrow_linear(normed, weights.selector.projection))
        logits = ops.lm_head_logits(x, self._lm_head, vocabulary=self._vocabulary)
        return choose_path(
            logits, own.wait(), anchors, weights.selector, candidates=config.candidates, draws=draws
        )

    def _places(self, batch: ContextBatch, cache: DFlashCache, rows: int) -> tuple[Tensor, Tensor]:
        positions, cells = cache.place(batch, rows)
        return plain_table(positions, self._config), cells


def _context_kv(config: DFlashConfig, weights: DFlashWeights[ops.Fp8Blocks]) -> ops.Fp8Blocks:
    """The keys' and values' rows of all layers, one below the other: all that a row of the context has."""
    parts = [layer.qkv.rows(config.query_size, layer.qkv.values.shape[0]) for layer in weights.layers]
    values = torch.cat([part.values.view(torch.uint8) for part in parts])  # torch joins bytes, no e4m3
    return ops.Fp8Blocks(values.view(torch.float8_e4m3fn), torch.cat([part.scales for part in parts]))

"""The DFlash2 block draft model: guesses the next tokens of sequences, all rows at once. Knows no requests.

It reads what some of the target's layers put out of the tokens so far, and a block of the last written token
and masks, whose rows see that context and each other. The formulas are those of the package dflash 0.1.0
("DFlash: Block Diffusion for Flash Speculative Decoding"). No value of a tensor is looked at on the host, so
a graph can hold both steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_block import block_of, block_tokens, plain_table
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_layer import DFlashLayer
from sparkle.model.dflash_selector import Draws, choose_path
from sparkle.model.dflash_weights import DFlashWeights


class DFlash:
    """In float32, on the device of its weights.

    `embedding` [vocab, hidden] and `lm_head` [vocab, hidden] are the target's. Only the first
    `draft_vocab_size` tokens are ever guessed: the lower a token's number, the more frequent it is.
    """

    def __init__(
        self,
        config: DFlashConfig,
        weights: DFlashWeights[Tensor],
        *,
        embedding: Tensor,
        lm_head: Tensor,
        draft_vocab_size: int | None = None,
    ) -> None:
        self._config = config
        self._weights = weights
        self._embedding = embedding
        self._lm_head = lm_head[: draft_vocab_size or config.vocab_size]
        self._layers = [DFlashLayer(config, layer, number) for number, layer in enumerate(weights.layers)]

    @torch.inference_mode()
    def extend(self, outputs: Tensor, batch: ContextBatch, cache: DFlashCache) -> None:
        """Take the kept rows of a pass of the target into their sequences' contexts.

        outputs [T, tapped layers · hidden], see Taps; rows outside the spans may hold anything. Of a prompt
        the newest `window` rows are enough.
        """
        config, weights = self._config, self._weights
        context = F.linear(outputs.to(self._embedding.dtype), weights.fuse)
        context = ops.rms_norm(context, weights.context_norm, eps=config.rms_norm_eps)
        positions, cells = cache.place(batch, outputs.shape[0])
        table = plain_table(positions, config)
        for layer in self._layers:
            layer.extend(context, table, cells, cache)

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
        """The rows - 1 tokens that may follow each of `anchors`: int64 [S, rows - 1].

        anchors int64 [S], the last written token of each sequence, which its context has not; slots int64
        [S], negative for an unused place, of which the draft is anything; contexts int64 [S], tokens that
        `extend` kept of each so far; `draws` for rows - 1 tokens, see choose_path. ValueError where `rows` is
        not 2 to 16.
        """
        config, weights = self._config, self._weights
        block = block_of(slots, contexts, cache, config, rows=rows)
        hidden = F.embedding(block_tokens(anchors, config, rows=rows), self._embedding)
        for layer in self._layers:
            hidden = layer.forward(hidden, block, cache)
        x = ops.rms_norm(hidden, weights.norm, eps=config.rms_norm_eps)
        logits = F.linear(x, self._lm_head).float()
        own = F.linear(x, weights.selector.projection).float()
        return choose_path(logits, own, anchors, weights.selector, candidates=config.candidates, draws=draws)

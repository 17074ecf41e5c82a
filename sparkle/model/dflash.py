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
from sparkle.model.dflash_cache import ContextBatch, DFlashCache, visible
from sparkle.model.dflash_config import MAX_BLOCK_ROWS, MIN_BLOCK_ROWS, DFlashConfig
from sparkle.model.dflash_layer import Block, DFlashLayer
from sparkle.model.dflash_selector import Draws, choose_path
from sparkle.model.dflash_weights import DFlashWeights
from sparkle.model.matrix import Matrix, logits_of, product


class DFlash:
    """Computes on the device and in the form of its weights: float32, or bfloat16 with FP8 products.

    `embedding` [vocab, hidden] and `lm_head` [vocab, hidden] are the target's, in the same form.
    """

    def __init__(
        self, config: DFlashConfig, weights: DFlashWeights, *, embedding: Tensor, lm_head: Matrix
    ) -> None:
        self._config = config
        self._weights = weights
        self._embedding = embedding
        self._lm_head = lm_head
        self._layers = [DFlashLayer(config, layer, number) for number, layer in enumerate(weights.layers)]

    @torch.inference_mode()
    def extend(self, outputs: Tensor, batch: ContextBatch, cache: DFlashCache) -> None:
        """Take the kept rows of a pass of the target into their sequences' contexts.

        outputs [T, tapped layers · hidden], see Taps; rows outside the spans may hold anything. Of a prompt
        the newest `window` rows are enough.
        """
        config, weights = self._config, self._weights
        context = product(outputs.to(self._embedding.dtype), weights.fuse)
        context = ops.rms_norm(context, weights.context_norm, eps=config.rms_norm_eps)
        positions, cells = cache.place(batch, outputs.shape[0])
        table = self._rotary_table(positions)
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
        if not MIN_BLOCK_ROWS <= rows <= MAX_BLOCK_ROWS:
            raise ValueError(f"rows is {rows} but a block has {MIN_BLOCK_ROWS} to {MAX_BLOCK_ROWS}")
        config, weights = self._config, self._weights
        spans = len(slots)
        block = self._block(slots, contexts, rows)
        masks = torch.full((spans, rows - 1), config.mask_token, dtype=torch.int64, device=slots.device)
        hidden = F.embedding(torch.cat((anchors[:, None], masks), dim=1).view(-1), self._embedding)
        for layer in self._layers:
            hidden = layer.forward(hidden, block, cache)
        guessed = hidden.view(spans, rows, -1)[:, 1:]
        x = ops.rms_norm(guessed, weights.norm, eps=config.rms_norm_eps)
        logits = logits_of(x.flatten(0, 1), self._lm_head, vocabulary=config.vocab_size)
        return choose_path(x, logits, anchors, weights.selector, candidates=config.candidates, draws=draws)

    def _block(self, slots: Tensor, contexts: Tensor, rows: int) -> Block:
        window = self._config.window
        positions = contexts[:, None] + torch.arange(rows, device=slots.device)
        ring = visible(contexts, window=window, rows=rows)
        # no later row is out of sight: the window is no shorter than the longest block
        own = torch.ones(len(slots), rows, rows, dtype=torch.bool, device=slots.device)
        return Block(
            slots=slots,
            mask=torch.cat((ring, own), dim=2)[:, None],
            rotary_table=self._rotary_table(positions.view(-1)),
        )

    def _rotary_table(self, positions: Tensor) -> Tensor:
        """Of plain positions, int64 [T]."""
        lanes = self._config.head_dim // 2
        return ops.rotary_table(
            positions.expand(3, -1),
            theta=self._config.rope_theta,
            rotary_dim=self._config.head_dim,
            sections=(lanes, 0, 0),
        )

"""The checkpoint's own draft head: guesses tokens from the decoder's output. Knows no requests.

A row joins the decoder's output for token i, after its final norm, with the embedding of token i + 1, and
passes one decoder layer at the position and in the cell of token i; its output gives token i + 2. Behind the
last token known, a row joins the head's own output of the row before with the token guessed there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.cache import SequenceCache
from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.decoder import PassBatch, pass_layout
from sparkle.model.layer import DecoderLayer
from sparkle.model.mtp_chain import ChainStart, float_rows, last_rows
from sparkle.model.weights import DecoderWeights


class Mtp:
    """Keeps its keys and values in the last layer of the decoder's cache, in the decoder's pages.

    Of each sequence it must have read all tokens before a chain, in order: the prompt's, and as they are
    accepted the answer's. Only the first `draft_vocab_size` tokens are ever guessed, all where it is None:
    the lower a token's number, the more frequent it is.
    """

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, *, draft_vocab_size: int | None = None
    ) -> None:
        assert weights.mtp is not None, "a checkpoint without a draft head has no MTP"
        self._config = config
        self._embedding = weights.embedding
        self._lm_head = weights.lm_head[: draft_vocab_size or config.vocab_size]
        self._weights = weights.mtp
        self._layer = DecoderLayer(config, weights.mtp.layer, config.layer_types.count(LayerType.FULL))

    @torch.inference_mode()
    def read(self, batch: PassBatch, hidden: Tensor, cache: SequenceCache) -> Tensor:
        """The head's output [T, hidden] of all rows, after its own norm.

        `batch` is as the decoder's pass that gave `hidden` [T, hidden], but for its tokens: each row has the
        token after its own. Rows that turn out wrong are written over by the next that stand in their cells.
        """
        config, weights = self._config, self._weights
        embedded = F.embedding(batch.token_ids, self._embedding)
        pair = (
            ops.rms_norm(embedded, weights.embedding_norm, eps=config.rms_norm_eps),
            ops.rms_norm(hidden, weights.hidden_norm, eps=config.rms_norm_eps),
        )
        layout = pass_layout(config, batch, page_tokens=cache.page_tokens)
        x = self._layer.forward(F.linear(torch.cat(pair, dim=1), weights.joined), layout, cache)
        return ops.rms_norm(x, weights.norm, eps=config.rms_norm_eps)

    @torch.inference_mode()
    def follow(
        self, batch: PassBatch, hidden: Tensor, cache: SequenceCache, *, contexts: Tensor, kept: Tensor
    ) -> Tensor:
        """Read all rows; the head's output [S, hidden] of the last of each span's first `kept` ones.

        kept int64 [S]; contexts int64 [S], rows read before. The rest is as for `read`.
        """
        del contexts  # all rows are computed anyway
        return self.read(batch, hidden, cache).index_select(0, last_rows(batch, kept))

    @torch.inference_mode()
    def logits(self, outputs: Tensor) -> Tensor:
        """Float32 [R, tokens that may be guessed], of the token after next; outputs [R, hidden]."""
        return F.linear(outputs, self._lm_head).float()

    @torch.inference_mode()
    def draft(self, start: ChainStart, cache: SequenceCache, *, count: int) -> Tensor:
        """The likeliest tokens one after another, of equal ones the lowest: int64 [S, count]."""
        outputs = start.outputs
        tokens = [self._likeliest(outputs)]
        for step in range(1, count):
            outputs = self.read(float_rows(start, tokens[-1], step), outputs, cache)
            tokens.append(self._likeliest(outputs))
        return torch.stack(tokens, dim=1)

    def _likeliest(self, outputs: Tensor) -> Tensor:
        return ops.largest(self.logits(outputs), 1)[1][:, 0]

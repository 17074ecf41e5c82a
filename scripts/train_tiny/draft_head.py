"""The MTP draft head in plain torch, made for training: a row for each token, then chains behind some rows.

Row i joins the model's output for token i, after its final norm, with the embedding of token i + 1, and gives
token i + 2. In a chain the head's own output of the row before stands for the model's, as while it drafts.
Parameters are named as in the checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_tiny.dimensions import Dimensions
from scripts.train_tiny.model import Layer, Linear, Norm


class DraftHead(nn.Module):
    """The head; embedding and output matrix are the model's."""

    def __init__(self, sizes: Dimensions) -> None:
        super().__init__()
        hidden, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.pre_fc_norm_embedding = Norm(hidden, eps)
        self.pre_fc_norm_hidden = Norm(hidden, eps)
        self.fc = Linear(2 * hidden, hidden)
        self.layers = nn.ModuleList([Layer(sizes, "full_attention")])
        self.norm = Norm(hidden, eps)

    def forward(self, embedded: Tensor, hidden: Tensor, anchors: Tensor, *, steps: int) -> list[Tensor]:
        """Outputs [B, A, hidden] of each of `steps` guesses behind the rows `anchors`.

        embedded [B, T, hidden], of the tokens themselves; hidden [B, T, hidden], the model's for each;
        anchors int64 [B, A], at most T - 1 - steps. Along a chain the embeddings are those of the chat's own
        tokens: where a guess was wrong, what follows it counts for nothing.
        """
        layer, tokens = self._layer(), embedded.shape[1]
        x = self._joined(embedded[:, 1:], hidden[:, :-1])
        positions = torch.arange(tokens - 1, device=x.device)
        query, key, value, gate = layer.self_attn.heads(layer.input_layernorm(x), positions)
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        outputs = [_at(self._finished(x, attended.transpose(1, 2), gate), anchors)]
        # what the model's rows have, in front of each chain, and what the chains have added
        seen = (positions <= anchors[..., None])[:, None]  # [B, 1, A, T - 1]
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(1, steps):
            x = self._joined(_at(embedded, anchors + step + 1), outputs[-1])
            heads = layer.self_attn.heads(layer.input_layernorm(x), anchors + step)
            own.append((heads[1], heads[2]))
            attended = _chained(heads[0], key, value, seen, own)
            outputs.append(self._finished(x, attended, heads[3]))
        return outputs

    def _layer(self) -> Layer:
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer

    def _joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        pair = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        result: Tensor = self.fc(torch.cat(pair, dim=-1))
        return result

    def _finished(self, x: Tensor, attended: Tensor, gate: Tensor) -> Tensor:
        layer = self._layer()
        x = x + layer.self_attn.gated(attended, gate)
        result: Tensor = self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))
        return result


def _at(x: Tensor, rows: Tensor) -> Tensor:
    """[B, A, hidden]: rows int64 [B, A] of x [B, T, hidden]."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))


def _chained(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention [B, A, H, D] of a row of each chain over `seen` keys [B, T, Hkv, D] and the chain's own."""
    batch, chains, heads, width = query.shape
    group = heads // key.shape[2]
    query = query.transpose(1, 2) * width**-0.5  # [B, H, A, D]
    key, value = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (key, value))
    before = (query @ key.transpose(2, 3)).masked_fill(~seen, float("-inf"))
    # own rows: [B, H, A, steps, D]
    own_keys, own_values = (
        torch.stack(parts, dim=2).permute(0, 3, 1, 2, 4).repeat_interleave(group, dim=1)
        for parts in zip(*own, strict=True)
    )
    inside = (query[..., None, :] @ own_keys.transpose(3, 4))[..., 0, :]
    shares = torch.cat((before, inside), dim=-1).float().softmax(-1).to(value.dtype)
    far, near = shares[..., : key.shape[2]], shares[..., key.shape[2] :]
    attended = far @ value + (near[..., None, :] @ own_values)[..., 0, :]
    result: Tensor = attended.transpose(1, 2).reshape(batch, chains, heads, width)
    return result

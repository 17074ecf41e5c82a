"""The DFlash2 block draft model in plain torch, made for training: many blocks of each chat at once.

A block is a written token, the anchor, and masks behind it. Its rows see what the tapped layers of the model
put out for the tokens in front of it, and each other. The formulas are those of sparkle/model/dflash.py and
its neighbours; a test holds the two together. Parameters are named as in the published checkpoint.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_tiny.model import Linear, Mlp, Norm, rotated

SIDES, TAPS = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of the draft model for sparkle-tiny; names as in its config.json."""

    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int = 384
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 128
    sliding_window: int = 512
    rope_theta: float = 1e7
    rms_norm_eps: float = 1e-6
    num_target_layers: int = 8
    target_layer_ids: tuple[int, ...] = (1, 4, 7)
    block_size: int = 16
    mask_token_id: int = 8191
    """A token that no text has: <|audio_pad|>."""
    conv_group_size: int = 8
    selector_rank: int = 32
    selector_top_k: int = 16


class BlockDraft(nn.Module):
    """The draft model; embedding and output matrix are the model's.

    `spread` [layers · hidden]: how large the tapped outputs are. They are divided by it, so that all learn at
    one rate; the checkpoint has it in `fc`.
    """

    spread: Tensor

    def __init__(self, sizes: BlockSizes, spread: Tensor) -> None:
        super().__init__()
        hidden, eps, rank = sizes.hidden_size, sizes.rms_norm_eps, sizes.selector_rank
        self.sizes = sizes
        self.register_buffer("spread", spread)
        self.fc = Linear(len(sizes.target_layer_ids) * hidden, hidden)
        self.hidden_norm = Norm(hidden, eps)
        self.layers = nn.ModuleList(BlockLayer(sizes) for _ in range(sizes.num_hidden_layers))
        self.norm = Norm(hidden, eps)
        self.candidate_selector = Selector(sizes.vocab_size, hidden, rank)

    def forward(self, taps: Tensor, embedded: Tensor, mask: Tensor, anchors: Tensor) -> Tensor:
        """Outputs [B, A, rows - 1, hidden], after the last norm, of the masks of blocks of `block_size` rows.

        taps [B, T, layers · hidden] and embedded [B, T, hidden], of the chat's tokens; mask [hidden], the
        mask token's embedding; anchors int64 [B, A].
        """
        sizes = self.sizes
        batch, tokens, _ = taps.shape
        context = self.hidden_norm(self.fc((taps / self.spread).to(taps.dtype)))
        places = torch.arange(tokens, device=taps.device)
        blocks = Blocks.behind(anchors, places, rows=sizes.block_size, window=sizes.sliding_window)
        first = embedded.gather(1, anchors[..., None].expand(-1, -1, sizes.hidden_size))
        masks = mask.expand(batch, anchors.shape[1], sizes.block_size - 1, -1)
        x = torch.cat((first[:, :, None], masks), dim=2)
        for layer in self.layers:
            x = layer(x, context, places, blocks)
        result: Tensor = self.norm(x[:, :, 1:])
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Where the rows of all blocks stand and what each sees."""

    positions: Tensor  # int64 [B, A · rows]
    seen: Tensor  # bool [B, 1, A · rows, T + A · rows]

    @classmethod
    def behind(cls, anchors: Tensor, places: Tensor, *, rows: int, window: int) -> "Blocks":
        """Blocks of `rows` rows behind anchors int64 [B, A], over a context at `places` [T]."""
        count = anchors.shape[1]
        positions = (anchors[..., None] + torch.arange(rows, device=anchors.device)).flatten(1)
        starts = anchors.repeat_interleave(rows, dim=1)[..., None]
        before = (places < starts) & (positions[..., None] - places < window)
        block = torch.arange(count * rows, device=anchors.device) // rows
        own = (block[:, None] == block).expand(len(anchors), -1, -1)
        return cls(positions=positions, seen=torch.cat((before, own), dim=2)[:, None])


class BlockLayer(nn.Module):
    """Norm, convolve, attend, convolve, add; norm, convolve, multiply each row, convolve, add."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        hidden, eps = sizes.hidden_size, sizes.rms_norm_eps
        gain = (2 * sizes.num_hidden_layers) ** -0.5
        self.input_layernorm = Norm(hidden, eps)
        self.attention_conv = RowConvolution(hidden, sizes.conv_group_size)
        self.self_attn = BlockAttention(sizes, gain)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp_conv = RowConvolution(hidden, sizes.conv_group_size)
        self.mlp = Mlp(hidden, sizes.intermediate_size, gain)

    def forward(self, x: Tensor, context: Tensor, places: Tensor, blocks: Blocks) -> Tensor:
        """x [B, A, rows, hidden] to the same; context [B, T, hidden] at `places`."""
        inside, taps = self.attention_conv.before(self.input_layernorm(x))
        x = x + self.attention_conv.after(self.self_attn(inside, context, places, blocks), taps)
        inside, taps = self.mlp_conv.before(self.post_attention_layernorm(x))
        return x + self.mlp_conv.after(self.mlp(inside), taps)


class BlockAttention(nn.Module):
    """Attention of the blocks' rows over the context and their own block."""

    def __init__(self, sizes: BlockSizes, gain: float) -> None:
        super().__init__()
        self.sizes = sizes
        query, key = sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
        self.q_proj = Linear(sizes.hidden_size, query)
        self.k_proj = Linear(sizes.hidden_size, key)
        self.v_proj = Linear(sizes.hidden_size, key)
        self.o_proj = Linear(query, sizes.hidden_size, gain)
        self.q_norm = Norm(sizes.head_dim, sizes.rms_norm_eps)
        self.k_norm = Norm(sizes.head_dim, sizes.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, places: Tensor, blocks: Blocks) -> Tensor:
        """x [B, A, rows, hidden], convolved, to the same."""
        sizes, rows = self.sizes, x.flatten(1, 2)
        query = self._turned(self.q_norm(self._heads(self.q_proj(rows))), blocks.positions)
        keys = [
            self._turned(self.k_norm(self._heads(self.k_proj(part))), positions)
            for part, positions in ((context, places), (rows, blocks.positions))
        ]
        values = [self._heads(self.v_proj(part)) for part in (context, rows)]
        group = sizes.num_attention_heads // sizes.num_key_value_heads
        key, value = (
            torch.cat(parts, dim=1).transpose(1, 2).repeat_interleave(group, dim=1)
            for parts in (keys, values)
        )
        attended = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=blocks.seen)
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result.view(x.shape)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.sizes.head_dim)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotated(x, positions, self.sizes.head_dim, self.sizes.rope_theta)


class RowConvolution(nn.Module):
    """Two taps, on each row and the one before it in its block, on both sides of what they wrap."""

    def __init__(self, hidden: int, group: int) -> None:
        super().__init__()
        self.base_kernel = nn.Parameter(torch.zeros(SIDES, TAPS, hidden))
        self.kernel_projection = Linear(hidden, SIDES * TAPS * (hidden // group))
        with torch.no_grad():
            # begins as the row itself
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.mul_(0.1)

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, A, rows, hidden] convolved, and the taps that it asks for, for `after`."""
        dynamic: Tensor = self.kernel_projection(x)
        dynamic = dynamic.view(*x.shape[:-1], SIDES, TAPS, -1)
        return self._convolved(x, dynamic, 0), dynamic

    def after(self, x: Tensor, dynamic: Tensor) -> Tensor:
        """x [B, A, rows, hidden] convolved."""
        return self._convolved(x, dynamic, 1)

    def _convolved(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        groups = dynamic.shape[-1]
        grouped = x.view(*x.shape[:-1], groups, -1)
        base = self.base_kernel[side].to(x.dtype).view(TAPS, groups, -1)
        taps = base + dynamic[..., side, :, :, None]  # [B, A, rows, taps, groups, group]
        behind = F.pad(grouped[:, :, :-1], (0, 0, 0, 0, 1, 0))
        return (taps[..., 0, :, :] * grouped + taps[..., 1, :, :] * behind).flatten(-2)


class Selector(nn.Module):
    """What a token adds to the score of the one behind it: Σ_r A[before, r] · h[r] · B[token, r]."""

    def __init__(self, vocabulary: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.randn(vocabulary, rank) * 0.02)
        self.hidden_projection = Linear(hidden, rank)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Scores [..., vocab] of all tokens, for outputs x [..., hidden] behind tokens int64 [...]."""
        weighted = F.embedding(before, self.predecessor_codebook.to(x.dtype)) * self.hidden_projection(x)
        scores: Tensor = weighted @ self.successor_codebook.to(x.dtype).T
        return scores

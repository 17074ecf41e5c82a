"""What the engine's memory goes to, worked out before any of it is taken. Knows no torch and no tensor.

The pages get what weights, workspace and slots leave over: everything else has a size of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.engine.buckets import MAX_ROWS
from sparkle.engine.settings import Sizes
from sparkle.errors import ConfigError
from sparkle.model.config import ModelConfig

FIXED_BYTES = 2 * 10**9
"""What libraries take for themselves, and the allocator loses between blocks of different sizes."""
_COPIES = 6
"""How often the widest rows of a layer stand in memory at once, in bfloat16: inputs, products, results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Sizes that follow from the model, in bytes."""

    weights_bytes: int
    slot_bytes: int
    """One request's states and windows, all layers."""

    page_bytes: int
    """One page's keys and values, all layers."""

    workspace_bytes: int
    """What a pass needs besides: activations, gathered keys and values, logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What is allocated, once, at the start."""

    device: str
    """Its name, for people."""

    free_bytes: int | None
    """What it had before; None where nobody asked."""

    needs: Needs
    slots: int
    """Requests that run at once."""

    cached_slots: int
    """Slots besides, for checkpoints."""

    num_pages: int
    page_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that all pages hold."""
        return self.num_pages * self.page_tokens

    @property
    def state_bytes(self) -> int:
        """All slots."""
        return (self.slots + self.cached_slots) * self.needs.slot_bytes

    @property
    def kv_bytes(self) -> int:
        """All pages."""
        return self.num_pages * self.needs.page_bytes

    @property
    def total_bytes(self) -> int:
        """Everything."""
        needs = self.needs
        return needs.weights_bytes + needs.workspace_bytes + self.state_bytes + self.kv_bytes

    def lines(self) -> list[str]:
        """The plan for people, a part a line."""
        free = "" if self.free_bytes is None else f", {_gb(self.free_bytes)} free"
        needs = self.needs
        return [
            f"memory plan for {self.device}{free}",
            f"  weights    {_gb(needs.weights_bytes):>9}",
            f"  workspace  {_gb(needs.workspace_bytes):>9}",
            f"  slots      {_gb(self.state_bytes):>9}  {self.slots} and {self.cached_slots} for checkpoints, "
            f"of {needs.slot_bytes / 1e6:,.1f} MB",
            f"  KV pages   {_gb(self.kv_bytes):>9}  {self.kv_tokens:,} tokens in {self.num_pages:,} pages "
            f"of {self.page_tokens}",
            f"  in all     {_gb(self.total_bytes):>9}",
        ]


def workspace_bytes(config: ModelConfig, sizes: Sizes, *, graph_rows: int) -> int:
    """Room for one pass of `sizes.pass_tokens` rows, and the logits of all graphs, `graph_rows` together."""
    widest = max(
        2 * config.intermediate_size,
        config.conv_channels + config.linear_value_size,
        2 * (config.num_heads + config.num_kv_heads) * config.head_dim,
    )
    activations = sizes.pass_tokens * 2 * _COPIES * (widest + config.hidden_size)
    # a layer's keys and values of the longest sequence, side by side in FP8 and in bfloat16, and once more
    # where attention wants them in one piece
    gathered = 2 * 5 * sizes.wanted_tokens(config.max_context_tokens) * config.num_kv_heads * config.head_dim
    # each graph keeps its own; those of one that are drawn from are gathered, masked, ordered and summed in
    # float64
    most_drawn = sizes.slots * (1 + sizes.draft_tokens)
    logits = 4 * config.vocab_size * (graph_rows + 9 * min(most_drawn, MAX_ROWS))
    # a bit a token, and one mask that is there always
    masks = (1 + most_drawn) * (config.vocab_size // 8 + 4)
    return activations + gathered + logits + masks + FIXED_BYTES


def plan_memory(
    config: ModelConfig, sizes: Sizes, needs: Needs, *, device: str, free_bytes: int
) -> MemoryPlan:
    """Everything that `sizes` asks for, and as many pages as are left where kv_tokens is None.

    Raises ConfigError, with what is there and what is needed, where it does not fit; and where pages are
    left over for less than one conversation of the wanted length.
    """
    taken = needs.weights_bytes + needs.workspace_bytes + sizes.state_slots * needs.slot_bytes
    wanted_tokens = sizes.kv_tokens or sizes.wanted_tokens(config.max_context_tokens)
    wanted_bytes = -(-wanted_tokens // sizes.page_tokens) * needs.page_bytes
    if taken + wanted_bytes > free_bytes:
        limit = "max_context_tokens" if sizes.kv_tokens is None else "kv_tokens"
        raise ConfigError(
            f"{device} has {_gb(free_bytes)} of memory free but {_gb(taken + wanted_bytes)} are needed: "
            f"{_gb(needs.weights_bytes)} for weights, "
            f"{_gb(needs.workspace_bytes)} for a pass of {sizes.pass_tokens:,} tokens, "
            f"{_gb(sizes.state_slots * needs.slot_bytes)} for {sizes.state_slots} slots, "
            f"{_gb(wanted_bytes)} for {wanted_tokens:,} KV tokens; "
            f"lower {limit}, slots, cached_slots or pass_tokens, or end what else is in it"
        )
    return MemoryPlan(
        device=device,
        free_bytes=free_bytes,
        needs=needs,
        slots=sizes.slots,
        cached_slots=sizes.cached_slots,
        num_pages=(free_bytes - taken) // needs.page_bytes if sizes.kv_tokens is None else sizes.num_pages,
        page_tokens=sizes.page_tokens,
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"

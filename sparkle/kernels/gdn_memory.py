"""What Gated DeltaNet keeps of each sequence between passes, in one layer. Knows no op."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_shape

WINDOW = 16
"""Tokens of one sequence in a pass at most."""
TAPS = 4
"""Width of the convolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnGates:
    """The weights that make beta = sigmoid(b) and log_decay = -exp(a_log) softplus(a + dt_bias)."""

    a_log: Tensor  # float [Hv]
    dt_bias: Tensor  # float [Hv]


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnMemory:
    """The state up to before the last pass, and the window: what that pass's tokens would change.

    C = 2 Hk K + Hv V channels: queries, keys, values. A new sequence has zeros in its slot of `states` and
    `columns`; of the window only the tokens said to be accepted are read, of a new sequence none.
    """

    states: Tensor  # float32 [slots, Hv, K, V]
    columns: Tensor  # float [slots, TAPS-1, C], the convolution's inputs before the window, oldest first
    inputs: Tensor  # the same dtype [slots, WINDOW, C], the convolution's inputs
    keys: Tensor  # the same dtype [slots, WINDOW, Hv, K], of any length
    log_decays: Tensor  # float32 [slots, WINDOW, Hv]
    writes: Tensor  # float32 [slots, WINDOW, Hv, V]: a token adds the product of its key and its row here

    @classmethod
    def empty(
        cls,
        slots: int,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> GdnMemory:
        """Memory of sequences without tokens."""
        channels = 2 * key_heads * key_dim + value_heads * value_dim

        def zeros(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(slots, *shape, dtype=of, device=device)

        return cls(
            states=zeros(value_heads, key_dim, value_dim),
            columns=zeros(TAPS - 1, channels, of=dtype),
            inputs=zeros(WINDOW, channels, of=dtype),
            keys=zeros(WINDOW, value_heads, key_dim, of=dtype),
            log_decays=zeros(WINDOW, value_heads),
            writes=zeros(WINDOW, value_heads, value_dim),
        )

    @property
    def channels(self) -> int:
        """Inputs of the convolution a token."""
        return self.columns.shape[2]

    @property
    def key_heads(self) -> int:
        """Heads of the queries and keys."""
        _, value_heads, key_dim, value_dim = self.states.shape
        return (self.channels - value_heads * value_dim) // (2 * key_dim)

    def check(self) -> None:
        """Raises ValueError where a field's shape, dtype or strides are not those above."""
        require_dtype("states", self.states, torch.float32)
        require_shape("states", self.states, None, None, None, None)
        slots, value_heads, key_dim, value_dim = self.states.shape
        require_dtype("columns", self.columns, *FLOATS)
        require_shape("columns", self.columns, slots, TAPS - 1, None)
        key_heads, rest = divmod(self.channels - value_heads * value_dim, 2 * key_dim)
        if key_heads < 1 or rest or value_heads % key_heads:
            raise ValueError(
                f"columns have {self.channels} channels but must have {value_heads} values of {value_dim}, "
                f"and queries and keys of {key_dim} for as many heads or for a fraction of them"
            )
        require_dtype("inputs", self.inputs, self.columns.dtype)
        require_shape("inputs", self.inputs, slots, WINDOW, self.channels)
        require_dtype("keys", self.keys, self.columns.dtype)
        require_shape("keys", self.keys, slots, WINDOW, value_heads, key_dim)
        require_dtype("log_decays", self.log_decays, torch.float32)
        require_shape("log_decays", self.log_decays, slots, WINDOW, value_heads)
        require_dtype("writes", self.writes, torch.float32)
        require_shape("writes", self.writes, slots, WINDOW, value_heads, value_dim)
        for name in ("states", "columns", "inputs", "keys", "log_decays", "writes"):
            require_dense(name, getattr(self, name))

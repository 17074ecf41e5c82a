"""The gated delta rule in both forms against the recurrence, token by token, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.tolerance import mismatch
from tests.kernels.spans import FLOATS, NUM_SLOTS, SPANS, bounds_of, slots_of, starts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Random rows of a pass; T rows, `repeats` value heads to a key head."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor

    @classmethod
    def random(
        cls, num_rows: int, key_heads: int, repeats: int, key_dim: int, value_dim: int, dtype: torch.dtype
    ) -> Rows:
        heads = key_heads * repeats
        query, key = torch.randn(2, num_rows, key_heads, key_dim).to(dtype)
        return cls(
            query=query,
            key=key,
            value=torch.randn(num_rows, heads, value_dim).to(dtype),
            # from hardly any decay to forgetting all within a token
            log_decay=-torch.empty(num_rows, heads).uniform_(-9, 4).exp(),
            beta=torch.rand(num_rows, heads),
        )

    def __getitem__(self, part: slice) -> Rows:
        fields = (self.query, self.key, self.value, self.log_decay, self.beta)
        query, key, value, log_decay, beta = (field[part] for field in fields)
        return Rows(query=query, key=key, value=value, log_decay=log_decay, beta=beta)

    def apply(self, states: Tensor, span_starts: Tensor, slots: Tensor) -> Tensor:
        return ops.delta_rule(
            self.query, self.key, self.value, self.log_decay, self.beta, states, span_starts, slots
        )


def exact_rule(rows: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence and its float64 state [Hv, K, V]: outputs [n, Hv, V] and the state after them."""
    num_rows, heads, value_dim = rows.value.shape
    repeats = heads // rows.key.shape[1]
    out = torch.empty(num_rows, heads, value_dim, dtype=torch.float64)
    state = state.clone()
    for row in range(num_rows):
        for head in range(heads):
            query, key = rows.query[row, head // repeats].double(), rows.key[row, head // repeats].double()
            query = query / (query.square().sum() + 1e-6).sqrt() / len(query) ** 0.5
            key = key / (key.square().sum() + 1e-6).sqrt()
            decayed = rows.log_decay[row, head].double().exp() * state[head]
            error = rows.value[row, head].double() - key @ decayed
            state[head] = decayed + torch.outer(key, rows.beta[row, head].double() * error)
            out[row, head] = query @ state[head]
    return out, state


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("key_heads", "repeats", "key_dim", "value_dim"), [(1, 1, 4, 4), (2, 3, 16, 8), (3, 1, 5, 12)]
)
@pytest.mark.parametrize("lengths", SPANS, ids=str)
def test_delta_rule(
    lengths: tuple[int, ...], key_heads: int, repeats: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    rows = Rows.random(sum(lengths), key_heads, repeats, key_dim, value_dim, dtype)
    slots, starts = slots_of(lengths), starts_of(lengths)
    states = torch.full((NUM_SLOTS, key_heads * repeats, key_dim, value_dim), torch.nan)
    states[slots] = torch.randn(len(lengths), key_heads * repeats, key_dim, value_dim)
    before = states.clone()

    got = rows.apply(states, starts, slots)

    exact = torch.empty_like(rows.value, dtype=torch.float64)
    for (start, stop), slot in zip(bounds_of(starts), slots, strict=True):
        exact[start:stop], state = exact_rule(rows[start:stop], before[slot].double())
        assert mismatch("delta_rule", states[slot], state) is None
    assert got.dtype == dtype
    assert mismatch("delta_rule", got, exact) is None
    untouched = [slot for slot in range(NUM_SLOTS) if slot not in slots]
    assert bool(states[untouched].isnan().all())


@pytest.mark.parametrize("cut", [1, 2, 5, 63, 64, 65, 69])
def test_two_passes_are_one(cut: int) -> None:
    rows = Rows.random(70, 1, 3, 8, 8, torch.float32)
    exact, state = exact_rule(rows, torch.zeros(3, 8, 8, dtype=torch.float64))
    states, slots = torch.zeros(2, 3, 8, 8), torch.tensor([1])
    parts = [part.apply(states, starts_of([len(part.key)]), slots) for part in (rows[:cut], rows[cut:])]
    assert mismatch("delta_rule", torch.cat(parts), exact) is None
    assert mismatch("delta_rule", states[1], state) is None


def test_a_strong_decay_does_not_blur_the_tokens_after_it() -> None:
    """A running sum of log decays would be -4000 here, and its differences off by 2e-4."""
    rows = Rows.random(64, 1, 1, 8, 8, torch.float32)
    rows.log_decay.fill_(-0.01)
    rows.log_decay[5] = -4000.0
    exact, _ = exact_rule(rows, torch.zeros(1, 8, 8, dtype=torch.float64))
    got = rows.apply(torch.zeros(1, 1, 8, 8), starts_of([64]), torch.tensor([0]))
    assert mismatch("delta_rule", got, exact) is None


def test_the_same_pass_twice_gives_the_same_bits() -> None:
    rows = Rows.random(70, 2, 2, 16, 16, torch.float32)
    starts, slots = starts_of([69, 1]), torch.tensor([1, 0])
    first, second = (torch.ones(2, 4, 16, 16) for _ in range(2))
    assert torch.equal(rows.apply(first, starts, slots), rows.apply(second, starts, slots))
    assert torch.equal(first, second)

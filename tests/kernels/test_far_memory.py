"""Ops over memory beyond 2^31 elements: what they give at its end is what they give at its beginning.

An offset of 32 bits would be negative there. Each test holds ten to twenty gigabytes.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.gdn_chunk import gdn_chunk
from sparkle.kernels.gdn_memory import GdnMemory
from sparkle.kernels.gdn_prompt_inputs import gdn_prompt_inputs
from sparkle.kernels.gdn_step import gdn_step
from sparkle.kernels.prefill_attention import prefill_attention
from sparkle.kernels.qkv_write import qkv_write
from sparkle.kernels.ring_attention import Rings, ring_attention_quantised
from sparkle.kernels.verify_attention import verify_attention
from tests.kernels.gdn_inputs import GdnShape, random_rows, random_weights
from tests.kernels.paged_inputs import PagedCase, PagedInputs, paged_inputs
from tests.kernels.test_qkv_write import EPS, inputs_of
from tests.kernels.test_ring_attention import Case, rings_of

pytestmark = pytest.mark.gpu

LIMIT = 1 << 31
PAGE = (64, 4, 256)
NUM_PAGES = 34_000
"""Of 65,536 elements."""
GDN = GdnShape(key_heads=16, value_heads=48, dim=128)
NUM_SLOTS = 2740
"""States of 786,432 elements."""
NUM_RINGS = 1030
"""Of 2,064 cells of 8 heads of 128."""
SCALE = 0.0625


def bits(part: Tensor) -> Tensor:
    """Comparable whatever is in it, also what is no number."""
    return part.contiguous().view(torch.uint8)


def far_pages(near: Tensor) -> Tensor:
    """A pool whose last pages are `near`."""
    # torch fills bytes where it fills no e4m3
    kind = torch.uint8 if near.dtype == torch.float8_e4m3fn else near.dtype
    pool = torch.zeros(NUM_PAGES, *near.shape[1:], dtype=kind, device=near.device).view(near.dtype)
    pool[-near.shape[0] :].view(torch.uint8).copy_(near.view(torch.uint8))
    assert pool.numel() > LIMIT
    return pool


def moved_to_the_end(near: PagedInputs) -> PagedInputs:
    """The same sequences on the last pages of large pools."""
    shift = NUM_PAGES - near.key_pages.shape[0]
    return dataclasses.replace(
        near,
        key_pages=far_pages(near.key_pages),
        value_pages=far_pages(near.value_pages),
        page_tables=torch.where(near.page_tables < 0, near.page_tables, near.page_tables + shift),
    )


@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
def test_attention_of_few_tokens(gpu: torch.device, cache: torch.dtype) -> None:
    near = paged_inputs(PagedCase.of_27b((1000, 70), (16, 3), cache=cache), seed=1).on(gpu)
    wanted = verify_attention(*near.attended, width=16, scale=SCALE)
    got = verify_attention(*moved_to_the_end(near).attended, width=16, scale=SCALE)
    assert torch.equal(got, wanted)
    assert bool(wanted.isfinite().all())


def test_attention_of_a_prompt(gpu: torch.device) -> None:
    near = paged_inputs(PagedCase.of_27b((500,), (300,)), seed=2).on(gpu)

    def attend(inputs: PagedInputs) -> Tensor:
        pages = inputs.key_pages, inputs.value_pages, inputs.page_tables[0, :13].contiguous()
        return prefill_attention(inputs.query, *pages, context=500, scale=SCALE)

    wanted = attend(near)
    assert torch.equal(attend(moved_to_the_end(near)), wanted)
    assert bool(wanted.isfinite().all())


def test_writing_keys_and_values(gpu: torch.device) -> None:
    inputs = inputs_of(50, heads=24, kv_heads=4, dim=256, pages=2, page_tokens=64)
    inputs = type(inputs)(
        **{field.name: getattr(inputs, field.name).to(gpu) for field in dataclasses.fields(inputs)}
    )
    near = [torch.zeros(2, *PAGE, dtype=torch.uint8, device=gpu).view(torch.float8_e4m3fn) for _ in range(2)]
    wanted = qkv_write(*inputs.arguments(near[0], near[1]), eps=EPS)
    far = [far_pages(torch.zeros_like(part)) for part in near]
    shift = (NUM_PAGES - 2) * PAGE[0]
    cells = torch.where(inputs.cells < 0, inputs.cells, inputs.cells + shift)
    moved = dataclasses.replace(inputs, cells=cells)
    assert torch.equal(qkv_write(*moved.arguments(far[0], far[1]), eps=EPS), wanted)
    for one, other in zip(near, far, strict=True):
        assert torch.equal(bits(other[-2:]), bits(one))
        assert int(bits(other[:-2]).max()) == 0
        assert int(bits(one).max()) > 0


@pytest.fixture
def memories(gpu: torch.device) -> tuple[GdnMemory, GdnMemory]:
    """One of two sequences, and one whose states are beyond the limit."""
    near, far = (GDN.memory(slots, dtype=torch.bfloat16, device=gpu) for slots in (2, NUM_SLOTS))
    assert far.states.numel() > LIMIT
    return near, far


def of_last(memory: GdnMemory) -> list[Tensor]:
    """All that is kept of the last slot."""
    return [bits(getattr(memory, field.name)[-1]) for field in dataclasses.fields(memory)]


def test_states_of_few_tokens(gpu: torch.device, memories: tuple[GdnMemory, GdnMemory]) -> None:
    weights = random_weights(GDN, seed=1).to(gpu)
    qkv, ba = (part.to(gpu) for part in random_rows(GDN, 16, seed=2, dtype=torch.bfloat16))
    starts = torch.tensor([0, 16], device=gpu)
    results: list[Tensor] = []
    for memory in memories:
        slots = torch.tensor([memory.states.shape[0] - 1], device=gpu)
        for accepted in (0, 9, 16):
            counts = torch.tensor([accepted], device=gpu)
            out = gdn_step(qkv, ba, weights.conv, weights.gates, memory, starts, slots, counts)
        results.append(out)
    assert torch.equal(results[0], results[1])
    for one, other in zip(*map(of_last, memories), strict=True):
        assert torch.equal(one, other)
    near, far = memories
    assert float(near.states[-1].abs().max()) > 0
    assert float(far.states[:-1].abs().max()) == 0


def test_states_of_a_prompt(gpu: torch.device, memories: tuple[GdnMemory, GdnMemory]) -> None:
    weights = random_weights(GDN, seed=1).to(gpu)
    qkv, ba = (part.to(gpu) for part in random_rows(GDN, 130, seed=3, dtype=torch.bfloat16))
    starts = torch.tensor([0, 130], device=gpu)
    results: list[Tensor] = []
    for memory in memories:
        slots = torch.tensor([memory.states.shape[0] - 1], device=gpu)
        inputs = gdn_prompt_inputs(qkv, ba, weights.conv, weights.gates, memory, starts, slots)
        mixed, log_decay, beta = inputs
        size = GDN.key_heads * GDN.dim
        q, k, v = mixed.split_with_sizes((size, size, GDN.value_heads * GDN.dim), 1)
        q, k, v = (part.view(130, -1, GDN.dim) for part in (q, k, v))
        results.append(gdn_chunk(q, k, v, log_decay, beta, memory.states, starts, slots))
    assert torch.equal(results[0], results[1])
    near, far = memories
    for name in ("states", "columns"):
        assert torch.equal(getattr(near, name)[-1], getattr(far, name)[-1]), name
    assert float(near.states[-1].abs().max()) > 0
    assert float(far.states[:-1].abs().max()) == 0


def test_rings(gpu: torch.device) -> None:
    near = rings_of(Case((3000,), 8, window=2048, heads=32, kv_heads=8, dim=128), gpu)
    count = near.keys.shape[0]

    def far(part: Tensor) -> Tensor:
        pool = torch.zeros(NUM_RINGS, *part.shape[1:], dtype=part.dtype, device=gpu)
        pool[-count:] = part
        assert pool.numel() > LIMIT
        return pool

    slots = torch.where(near.slots < 0, near.slots, near.slots + NUM_RINGS - count)
    moved = dataclasses.replace(near, keys=far(near.keys), values=far(near.values), slots=slots)

    def attend(rings: Rings) -> ops.Fp8Rows:
        return ring_attention_quantised(rings, scale=SCALE)

    wanted, got = attend(near), attend(moved)
    # behind the block's rows are those of an unused place
    assert torch.equal(bits(got.values[:8]), bits(wanted.values[:8]))
    assert torch.equal(got.scales[:8], wanted.scales[:8])
    assert int(bits(wanted.values[:8]).max()) > 0

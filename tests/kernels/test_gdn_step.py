"""Gated DeltaNet with lazy replay: whatever is accepted, the results are those of one token after another."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparkle.kernels import gdn_step, reference_sequence
from sparkle.kernels.gdn_memory import WINDOW, GdnGates, GdnMemory
from sparkle.kernels.tolerance_relative import relative_mismatch
from tests.kernels.closeness import assert_same_bits
from tests.kernels.gdn_inputs import ExactGdn, GdnShape, GdnWeights, random_rows, random_weights
from tests.kernels.interpreter import Interpreter

Step = Callable[..., Tensor]
CPU = torch.device("cpu")
WIDTHS = (1, 2, 4, 8, WINDOW)
SMALL = GdnShape()
REAL = GdnShape(key_heads=16, value_heads=48, dim=128)


def call_in(interpreter: Interpreter) -> Step:
    """gdn_step's kernels in the interpreter; what they wrote comes back as a copy."""

    def step(*args: object, width: int = WINDOW) -> Tensor:
        out, parts = interpreter.call("tests.kernels.test_gdn_step:step_and_memory", *args, width=width)
        memory = args[4]
        assert isinstance(memory, GdnMemory)
        assert isinstance(out, Tensor)
        for name, part in parts.items():
            getattr(memory, name).copy_(part)
        return out

    return step


def step_and_memory(*args: Any, width: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Runs in the interpreter's process: the result, and the memory as it is then."""
    memory = args[4]
    assert isinstance(memory, GdnMemory)
    out = gdn_step.gdn_step_triton(*args, width=width, pdl=False)
    return out, {name: getattr(memory, name) for name in GdnMemory.__slots__}


def assert_close(op: str, got: Tensor, reference: Tensor, exact: Tensor) -> None:
    mismatch = relative_mismatch(op, got.cpu(), reference.cpu(), exact)
    assert mismatch is None, mismatch


class Sequence:
    """Drafts rows for one slot, learns how many were accepted, and knows the exact results."""

    def __init__(self, shape: GdnShape, weights: GdnWeights, *, seed: int) -> None:
        self._exact = ExactGdn(shape, weights)
        self._window: list[tuple[Tensor, Tensor]] = []
        self._shape, self._weights, self._seed = shape, weights, seed

    def accept(self, count: int) -> Tensor:
        """Reads the accepted rows of the last window for good; returns the state after them."""
        for qkv, ba in self._window[:count]:
            self._exact.read(qkv, ba)
        self._window = []
        return self._exact.state

    def draft(self, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """New rows, and what they read after everything accepted."""
        self._seed += 1
        qkv, ba = random_rows(self._shape, rows, seed=self._seed, dtype=dtype)
        self._window = list(zip(qkv, ba, strict=True))
        ahead = ExactGdn(self._shape, self._weights)
        ahead.state, ahead.history = self._exact.state, self._exact.history
        outs = [ahead.read(*row) for row in self._window]
        shape = (rows, self._shape.value_heads, self._shape.dim)
        return qkv, ba, torch.stack(outs) if outs else torch.empty(shape, dtype=torch.float64)


def run_windows(
    step: Step,
    shape: GdnShape,
    plans: list[list[tuple[int, int]]],
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Passes over several sequences at once; a plan has (accepted of its last span, new rows) for each."""
    weights = random_weights(shape, seed=1)
    count = len(plans[0])
    sequences = [Sequence(shape, weights, seed=100 * number) for number in range(count)]
    # slots out of order; one belongs to nobody and must stay as it is
    slots = torch.arange(count).flip(0)
    memory, reference = (shape.memory(count + 1, dtype=dtype, device=where) for where in (device, CPU))
    memory.states[count] = torch.nan
    on_device = weights.to(device)
    for plan in plans:
        states = [sequence.accept(accepted) for sequence, (accepted, _) in zip(sequences, plan, strict=True)]
        rows = [sequence.draft(new, dtype) for sequence, (_, new) in zip(sequences, plan, strict=True)]
        qkv, ba, exact = (torch.cat(part) for part in zip(*rows, strict=True))
        starts = torch.tensor([0, *(new for _, new in plan)]).cumsum(0)
        accepted = torch.tensor([kept for kept, _ in plan])
        wide = torch.nn.functional.pad(qkv, (0, 64))[:, : shape.channels]
        known = gdn_step.gdn_step_reference(
            wide, ba, weights.conv, weights.gates, reference, starts, slots, accepted
        )
        indices = (part.to(device) for part in (starts, slots, accepted))
        got = step(wide.to(device), ba.to(device), on_device.conv, on_device.gates, memory, *indices)
        assert_close("gdn_step", got, known, exact)
        assert_close(
            "gdn_state", memory.states[slots.to(device)], reference.states[slots], torch.stack(states)
        )
    assert memory.states[count].isnan().all()


def compare_widths(step: Step, shape: GdnShape, rows: int, *, device: torch.device = CPU) -> None:
    """A span of so many rows behind a full window: whatever the width is said to be, the same to the bit."""
    weights = random_weights(shape, seed=1).to(device)
    before, after = (
        [part.to(device) for part in random_rows(shape, count, seed=seed, dtype=torch.bfloat16)]
        for count, seed in ((WINDOW, 2), (rows, 3))
    )
    results: list[list[Tensor]] = []
    for width in (width for width in WIDTHS if width >= rows):
        memory = shape.memory(1, dtype=torch.bfloat16, device=device)
        out = torch.empty(0)
        for (qkv, ba), accepted, limit in ((before, 0, WINDOW), (after, WINDOW - 1, width)):
            places = (torch.tensor(part, device=device) for part in ([0, qkv.shape[0]], [0], [accepted]))
            out = step(qkv, ba, weights.conv, weights.gates, memory, *places, width=limit)
        copies = (part[:, :rows] for part in (memory.keys, memory.log_decays))
        window = (part[:, :rows] for part in (memory.writes, memory.inputs))
        results.append([out, memory.states, memory.columns, *copies, *window])
    for other in results:
        for got, want in zip(other, results[-1], strict=True):
            assert_same_bits(got, want)


def random_plans(sequences: int, passes: int, *, seed: int) -> list[list[tuple[int, int]]]:
    """Each pass accepts 0 to all of the last rows and drafts 1 to 16."""
    draw = random.Random(seed)
    before = [0] * sequences
    plans: list[list[tuple[int, int]]] = []
    for _ in range(passes):
        new = [draw.randint(1, WINDOW) for _ in range(sequences)]
        plans.append([(draw.randint(0, last), rows) for last, rows in zip(before, new, strict=True)])
        before = new
    return plans


PLANS = {
    "plain": [[(0, 1)], [(1, 1)], [(1, 1)], [(1, 1)], [(1, 1)]],
    "full": [[(0, 16)], [(16, 16)], [(0, 16)], [(15, 2)], [(2, 0)]],
    "ragged": [[(0, 3), (0, 1)], [(1, 2), (1, 5)], [(0, 0), (2, 16)], [(0, 1), (16, 1)]],
}


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS.keys())
def test_reference_is_the_formula(plans: list[list[tuple[int, int]]]) -> None:
    run_windows(gdn_step.gdn_step, GdnShape(key_heads=2, value_heads=6, dim=16), plans, dtype=torch.float32)


@pytest.mark.parametrize("seed", range(2))
def test_reference_whatever_is_accepted(seed: int) -> None:
    run_windows(gdn_step.gdn_step, SMALL, random_plans(2, 5, seed=seed))


def test_reference_agrees_with_the_plain_ops() -> None:
    shape, rows = SMALL, 12
    weights = random_weights(shape, seed=1)
    qkv, ba = random_rows(shape, rows, seed=2, dtype=torch.bfloat16)
    memory = shape.memory(1, dtype=torch.bfloat16, device=CPU)
    states, columns = memory.states.clone(), memory.columns.clone()
    spans, slots = torch.tensor([0, rows]), torch.tensor([0])
    mixed = reference_sequence.causal_conv(qkv, weights.conv, columns, spans, slots)
    size = shape.key_heads * shape.dim
    q, k, v = (
        part.reshape(rows, -1, shape.dim)
        for part in mixed.split_with_sizes((size, size, shape.value_heads * shape.dim), 1)
    )
    b, a = ba.float().chunk(2, 1)
    decay = -weights.gates.a_log.exp() * torch.nn.functional.softplus(a + weights.gates.dt_bias.float())
    plain = reference_sequence.delta_rule(q, k, v, decay, b.sigmoid(), states, spans, slots)
    got = gdn_step.gdn_step(qkv, ba, weights.conv, weights.gates, memory, spans, slots, torch.tensor([0]))
    torch.testing.assert_close(got, plain, rtol=1e-2, atol=1e-3)
    # the commit of all of it, by a pass without rows
    none = torch.tensor([0, 0])
    gdn_step.gdn_step(qkv[:0], ba[:0], weights.conv, weights.gates, memory, none, slots, torch.tensor([rows]))
    torch.testing.assert_close(memory.states, states, rtol=1e-4, atol=1e-5)
    assert torch.equal(memory.columns, columns)


def test_an_unused_place_of_the_batch_touches_nothing(interpreter: Interpreter) -> None:
    weights = random_weights(SMALL, seed=1)
    qkv, ba = random_rows(SMALL, 2, seed=2, dtype=torch.bfloat16)
    starts, slots, accepted = torch.tensor([0, 2, 2]), torch.tensor([0, -1]), torch.tensor([0, 16])
    for step in (gdn_step.gdn_step, call_in(interpreter)):
        memory = SMALL.memory(2, dtype=torch.bfloat16, device=CPU)
        memory.states[1] = 7.0
        out = step(qkv, ba, weights.conv, weights.gates, memory, starts, slots, accepted)
        assert not out.isnan().any()
        assert (memory.states[1] == 7.0).all()
        assert memory.writes[1].isnan().all()


def test_wrong_inputs_are_refused() -> None:
    weights = random_weights(SMALL, seed=1)
    qkv, ba = random_rows(SMALL, 2, seed=2, dtype=torch.bfloat16)
    memory = SMALL.memory(2, dtype=torch.bfloat16, device=CPU)
    places = torch.tensor([0, 2]), torch.tensor([0]), torch.tensor([0])
    with pytest.raises(ValueError, match="qkv has shape"):
        gdn_step.gdn_step(qkv[:, 1:], ba, weights.conv, weights.gates, memory, *places)
    with pytest.raises(ValueError, match=r"qkv is torch\.float32"):
        gdn_step.gdn_step(qkv.float(), ba, weights.conv, weights.gates, memory, *places)
    with pytest.raises(ValueError, match=r"accepted is torch\.int32"):
        gdn_step.gdn_step(
            qkv, ba, weights.conv, weights.gates, memory, *places[:2], torch.tensor([0], dtype=torch.int32)
        )
    gates = GdnGates(a_log=weights.gates.a_log[1:], dt_bias=weights.gates.dt_bias)
    with pytest.raises(ValueError, match="a_log has shape"):
        gdn_step.gdn_step(qkv, ba, weights.conv, gates, memory, *places)
    gates = GdnGates(a_log=weights.gates.a_log, dt_bias=weights.gates.dt_bias.half())
    with pytest.raises(ValueError, match=r"dt_bias is torch\.float16"):
        gdn_step.gdn_step(qkv, ba, weights.conv, gates, memory, *places)
    with pytest.raises(ValueError, match="width is 17 but a span has 1 to 16 rows"):
        gdn_step.gdn_step(qkv, ba, weights.conv, weights.gates, memory, *places, width=17)
    # what the kernels would read past
    turned = weights.conv.t().contiguous().t()
    with pytest.raises(ValueError, match="conv has strides"):
        gdn_step.gdn_step(qkv, ba, turned, weights.gates, memory, *places)
    with pytest.raises(ValueError, match=r"ba has strides .* but each row must be contiguous"):
        gdn_step.gdn_step(qkv, ba.repeat(1, 2)[:, ::2], weights.conv, weights.gates, memory, *places)


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS.keys())
def test_kernel(interpreter: Interpreter, plans: list[list[tuple[int, int]]]) -> None:
    run_windows(call_in(interpreter), SMALL, plans)


def test_kernel_whatever_is_accepted(interpreter: Interpreter) -> None:
    run_windows(call_in(interpreter), SMALL, random_plans(2, 4, seed=7))


@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_of_each_width(interpreter: Interpreter, width: int) -> None:
    compare_widths(call_in(interpreter), SMALL, width)


@pytest.mark.gpu
@pytest.mark.parametrize("plans", [*PLANS.values(), random_plans(8, 4, seed=3)], ids=str)
def test_kernel_on_the_gpu(gpu: torch.device, plans: list[list[tuple[int, int]]]) -> None:
    run_windows(gdn_step.gdn_step, REAL, plans, device=gpu)


@pytest.mark.gpu
def test_kernel_twice_on_the_gpu(gpu: torch.device) -> None:
    weights = random_weights(REAL, seed=1).to(gpu)
    qkv, ba = (part.to(gpu) for part in random_rows(REAL, 24, seed=2, dtype=torch.bfloat16))
    starts, slots = torch.tensor([0, 16, 24], device=gpu), torch.tensor([1, 0], device=gpu)
    results: list[tuple[Tensor, Tensor]] = []
    for _ in range(2):
        memory = REAL.memory(2, dtype=torch.bfloat16, device=gpu)
        for accepted in (0, 0), (9, 8):
            counts = torch.tensor(accepted, device=gpu)
            out = gdn_step.gdn_step(qkv, ba, weights.conv, weights.gates, memory, starts, slots, counts)
        results.append((out, memory.states))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_of_each_width_on_the_gpu(gpu: torch.device, width: int) -> None:
    compare_widths(gdn_step.gdn_step, REAL, width, device=gpu)


@pytest.mark.gpu
def test_passes_that_start_early_on_the_gpu(gpu: torch.device) -> None:
    weights = random_weights(REAL, seed=1).to(gpu)
    qkv, ba = (part.to(gpu) for part in random_rows(REAL, 24, seed=2, dtype=torch.bfloat16))
    starts, slots, counts = (torch.tensor(part, device=gpu) for part in ([0, 16, 24], [1, 0], [9, 8]))
    results: list[Tensor] = []
    for pdl in False, True:
        memory = REAL.memory(2, dtype=torch.bfloat16, device=gpu)
        for part in (memory.inputs, memory.keys, memory.log_decays, memory.writes):
            part.zero_()
        # nothing waits in between but the kernels themselves
        for _ in range(20):
            gdn_step.gdn_step_triton(
                qkv, ba, weights.conv, weights.gates, memory, starts, slots, counts, width=WINDOW, pdl=pdl
            )
        results.append(memory.states)
    assert_same_bits(*results)

"""The path through candidates: the reference against plain loops, the kernels against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.kernels import candidate_path
from sparkle.kernels.candidate_path import Candidates, Draws
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.fp8_inputs import CPU
from tests.kernels.interpreter import Interpreter

SHAPES = [(1, 1, 1, 8), (2, 3, 5, 20), (3, 2, 16, 64), (2, 4, 17, 70)]  # drafts, rows, candidates, rank
NAME = "sparkle.kernels.candidate_path:candidate_path_triton"


def inputs(
    spans: int, rows: int, count: int, rank: int, device: torch.device = CPU, *, dtype: torch.dtype
) -> Candidates:
    """Views of wider tensors, as those without a block's first row are; many scores are close."""
    draw = torch.Generator().manual_seed(spans * 100 + count)
    vocabulary = 4 * count + 3

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    order = torch.stack([torch.randperm(vocabulary, generator=draw) for _ in range(spans * (rows + 1))])
    return Candidates(
        values=normal(spans, rows + 1, count)[:, 1:],
        ids=order[:, :count].view(spans, rows + 1, count)[:, 1:].to(device),
        own=normal(spans, rows + 1, rank)[:, 1:],
        anchors=torch.randint(0, vocabulary, (spans,), generator=draw).to(device),
        predecessors=normal(vocabulary, rank).to(dtype),
        successors=(normal(vocabulary, rank) / rank**0.5).to(dtype),
    )


def draws_of(spans: int, rows: int, device: torch.device = CPU) -> Draws:
    """The first draft takes the likeliest."""
    draw = torch.Generator().manual_seed(rows)
    temperatures = torch.tensor([0.0, 0.5, 1.0, 1.5, 0.05, 3.0, 1.0, 0.8][:spans], dtype=torch.float64)
    chances = torch.rand(spans, rows, generator=draw, dtype=torch.float64) * 0.999
    return Draws(temperatures=temperatures.to(device), chances=chances.to(device))


def walked(candidates: Candidates, draws: Draws | None) -> list[list[int]]:
    """The formula, token by token in float64."""
    paths: list[list[int]] = []
    for span, anchor in enumerate(candidates.anchors):
        before, path = int(anchor), list[int]()
        for row in range(candidates.ids.shape[1]):
            ids = candidates.ids[span, row]
            pair = candidates.predecessors[before].double() * candidates.own[span, row].double()
            scores = candidates.values[span, row].double() + candidates.successors[ids].double() @ pair
            order = [int(place) for place in scores.sort(descending=True, stable=True).indices]
            place = order[0]
            if draws is not None and draws.temperatures[span] > 0:
                left = float(draws.chances[span, row])
                shares = (scores / draws.temperatures[span]).softmax(0)
                for place in order:
                    left -= float(shares[place])
                    if left < 0:
                        break
            before = int(ids[place])
            path.append(before)
        paths.append(path)
    return paths


def listed(paths: Tensor) -> list[list[int]]:
    return [[int(token) for token in path] for path in paths]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("drawn", [False, True])
def test_reference_is_the_formula(shape: tuple[int, int, int, int], drawn: bool) -> None:
    candidates = inputs(*shape, dtype=torch.float32)
    draws = draws_of(*shape[:2]) if drawn else None
    assert listed(candidate_path.candidate_path(candidates, draws)) == walked(candidates, draws)


def test_wrong_inputs_are_refused() -> None:
    candidates = inputs(2, 3, 5, 20, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"ids has shape \[2, 3, 5\]"):
        candidate_path.candidate_path(dataclasses.replace(candidates, values=candidates.values[:, :2]))
    with pytest.raises(ValueError, match="a row must be dense"):
        candidate_path.candidate_path(dataclasses.replace(candidates, own=candidates.own.mT.contiguous().mT))
    with pytest.raises(ValueError, match=r"chances has shape \[2, 2\]"):
        candidate_path.candidate_path(candidates, draws_of(2, 2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("drawn", [False, True])
def test_kernels(interpreter: Interpreter, shape: tuple[int, int, int, int], drawn: bool) -> None:
    candidates = inputs(*shape, dtype=torch.bfloat16)
    draws = draws_of(*shape[:2]) if drawn else None
    got = interpreter.call(NAME, candidates, draws, pdl=False)
    assert listed(got) == walked(candidates, draws)


def test_of_equal_scores_the_first_is_taken(interpreter: Interpreter) -> None:
    candidates = dataclasses.replace(
        inputs(2, 3, 5, 20, dtype=torch.float32),
        values=torch.zeros(2, 3, 5),
        own=torch.zeros(2, 3, 20),
    )
    draws = Draws(
        temperatures=torch.ones(2, dtype=torch.float64),
        chances=torch.tensor([[0.0, 0.19, 0.21], [0.5, 0.79, 0.99]], dtype=torch.float64),
    )
    for call in (candidate_path.candidate_path_reference, candidate_path.candidate_path_triton):
        name = f"sparkle.kernels.candidate_path:{call.__name__}"
        options = {"pdl": False} if call is candidate_path.candidate_path_triton else {}
        assert torch.equal(interpreter.call(name, candidates, None, **options), candidates.ids[:, :, 0])
        places = torch.tensor([[0, 0, 1], [2, 3, 4]])[:, :, None]
        drawn = interpreter.call(name, candidates, draws, **options)
        assert torch.equal(drawn, candidates.ids.gather(2, places)[..., 0])


@pytest.mark.parametrize("drawn", [False, True])
def test_kernels_compile_without_spills(drawn: bool) -> None:
    names = ("stride_values_span", "stride_values_row", "stride_value", "stride_ids_span", "stride_ids_row")
    sizes_of = (*names, "stride_id", "stride_own_span", "stride_own_row", "rank", "rows")
    types: dict[str, str] = dict.fromkeys(sizes_of, "i32")
    types |= dict.fromkeys(("p_values", "p_own"), "*fp32")
    types |= dict.fromkeys(("p_ids", "p_anchors", "p_tokens"), "*i64")
    types |= {"p_predecessors": "*bf16", "p_successors": "*bf16", "p_behind": "*i32"}
    if drawn:
        types |= {"p_temperatures": "*fp64", "p_chances": "*fp64"}
    aligned = frozenset({"stride_own_span", "stride_own_row", "rank"})
    empty = {} if drawn else {"p_temperatures": None, "p_chances": None}
    sizes = {"COUNT": 16, "PADDED": 16, "STEP": candidate_path.RANK_STEP, "DRAWN": drawn, "PDL": True}
    taken = compile_for_h200(
        candidate_path.take_behind_each_kernel, types, {**sizes, **empty}, aligned=aligned
    )
    walk = compile_for_h200(candidate_path.walk_kernel, types, {"PADDED": 16, "PDL": True}, warps=1)
    assert taken.stack_bytes == walk.stack_bytes == 0
    assert "mma.sync" in taken.ptx


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (1, 7, 16, 256), (8, 15, 16, 256)], ids=str)
@pytest.mark.parametrize("drawn", [False, True])
def test_kernels_on_the_gpu(gpu: torch.device, shape: tuple[int, int, int, int], drawn: bool) -> None:
    candidates = inputs(*shape, gpu, dtype=torch.bfloat16)
    draws = draws_of(*shape[:2], gpu) if drawn else None
    got = candidate_path.candidate_path(candidates, draws)
    assert listed(got) == walked(candidates, draws)
    assert torch.equal(candidate_path.candidate_path(candidates, draws), got)

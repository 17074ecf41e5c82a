"""The product with weights in a ring: what it compiles to, and on the GPU the same numbers as Triton's."""

from __future__ import annotations

import re

import pytest
import torch

from sparkle.kernels import fp8_few_rows, fp8_linear
from sparkle.kernels.tuning import LinearSettings, RingSettings, block_rows, measured_shapes, ring_settings
from sparkle.kernels.weight_ring import TILE_ROWS, power_of_two
from tests.kernels.ahead_of_time import TWO_PROGRAMS_SHARED_BYTES, compile_for_h200, e4m3_tiles
from tests.kernels.closeness import assert_close, assert_same_bits, exact_blocks, exact_rows
from tests.kernels.fp8_inputs import random_blocks, random_rows

RING_SHAPES = [shape for shape in measured_shapes() if ring_settings(*shape, rows=1) is not None]


def test_sizes_of_a_kernels_tensors() -> None:
    assert [power_of_two(count) for count in (1, 2, 3, 40, 64, 65)] == [1, 2, 4, 64, 64, 128]


@pytest.mark.parametrize("rows", [1, 17, 64])
@pytest.mark.parametrize("shape", RING_SHAPES, ids=str)
def test_every_measured_setting_compiles_to_tensor_core_code(shape: tuple[int, int], rows: int) -> None:
    chosen, width, groups = ring_settings(*shape, rows=rows), block_rows(rows), shape[1] // 128
    assert chosen is not None
    most_groups = -(-groups // chosen.split)
    compiled = compile_for_h200(
        fp8_few_rows.fp8_few_rows_kernel,
        {
            "w_tiles": e4m3_tiles(TILE_ROWS),
            "x_tiles": e4m3_tiles(width),
            "p_xs": "*fp32",
            "p_ws": "*fp32",
            "p_out": "*bf16" if chosen.split == 1 else "*fp32",
            "rows": "i32",
            "columns": "i32",
        },
        {
            "GROUPS": groups,
            "SPLIT": chosen.split,
            "TILES": chosen.tiles,
            "BM": width,
            "STAGES": chosen.stages,
            "ROW_STAGES": chosen.row_stages,
            "SLOTS": power_of_two(most_groups),
            "PDL": True,
        },
        warps=chosen.warps,
    )
    assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+k32)\.", compiled.ptx)) == {f"m64n{width}k32"}
    # bulk copies alone write what the tensor cores read: threads store scales
    assert set(re.findall(r"local_store .*tensor<(?:\d+x)+(\w+),", compiled.ttgir)) == {"f32"}
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= TWO_PROGRAMS_SHARED_BYTES
    # weights and their scales are asked for before the kernel in front has ended, rows and theirs after
    wait = compiled.ptx.index("griddepcontrol.wait")
    copies = [match.start() for match in re.finditer(r"cp\.async\.bulk", compiled.ptx)]
    assert sum(place < wait for place in copies) == chosen.stages
    assert sum(place > wait for place in copies) == chosen.row_stages + chosen.tiles + 1
    loads = [match.start() for match in re.finditer(r"ld\.global", compiled.ptx)]
    assert loads[0] < wait < loads[-1]
    # the op on rows behind it lies beside it from its start
    assert compiled.ptx.index("griddepcontrol.launch_dependents") < min(copies[0], loads[0])


@pytest.mark.parametrize(
    "settings", [(0, 1, 1, 1, 4), (1, 0, 1, 1, 4), (1, 1, 0, 1, 4), (1, 1, 1, 0, 4), (1, 1, 1, 1, 2)], ids=str
)
def test_settings_the_kernel_does_not_take_are_refused(settings: tuple[int, int, int, int, int]) -> None:
    split, tiles, stages, row_stages, warps = settings
    message = f"split {split}, tiles {tiles}, stages {stages} and row_stages {row_stages} .* warps {warps} 4"
    with pytest.raises(ValueError, match=message):
        RingSettings(*settings)


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 33, 64])
@pytest.mark.parametrize(
    ("shape", "split", "tiles"),
    [
        ((208, 384), 1, 1),
        ((208, 384), 2, 1),
        ((272, 640), 1, 2),
        ((400, 640), 2, 2),
        ((64, 128), 1, 1),
        ((5120, 6144), 3, 1),
    ],
    ids=str,
)
def test_the_same_numbers_as_the_kernel_in_triton(
    gpu: torch.device, shape: tuple[int, int], split: int, tiles: int, rows: int, warps: int
) -> None:
    x, w = random_rows(rows, shape[1], seed=1, device=gpu), random_blocks(*shape, seed=2, device=gpu)
    settings = RingSettings(split, tiles, 3, 2, warps)
    got = fp8_few_rows.fp8_few_rows(x, w, dtype=torch.float32, settings=settings, pdl=True)
    assert got.shape == (split, rows, shape[0])
    assert_same_bits(fp8_few_rows.fp8_few_rows(x, w, dtype=torch.float32, settings=settings, pdl=False), got)
    plain = LinearSettings(block_columns=64, split=split, stages=3, warps=4, fetch=0)
    triton = fp8_linear.fp8_linear_triton(x, w, dtype=torch.float32, settings=plain, pdl=True)
    assert_close("fp8_linear", got.sum(0), triton.sum(0), exact_rows(x) @ exact_blocks(w).t())

"""Launch settings: within what the kernel takes, for every number of rows and any shape."""

from __future__ import annotations

import pytest

from sparkle.kernels.tuning import (
    MULTIPROCESSORS,
    LinearSettings,
    block_rows,
    linear_settings,
    measured_shapes,
    ring_settings,
)

MULTIPROCESSOR_REGISTERS = 65_536
SHAPES = [*measured_shapes(), (16, 128), (256, 512), (5120, 2048), (100_000, 1280)]


@pytest.mark.parametrize(
    ("rows", "width"), [(0, 16), (1, 16), (16, 16), (17, 32), (33, 64), (64, 64), (999, 64)]
)
def test_rows_of_a_program(rows: int, width: int) -> None:
    assert block_rows(rows) == width


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_settings_fit_the_chip_and_never_split_by_rows(shape: tuple[int, int]) -> None:
    found = {rows: linear_settings(*shape, rows=rows) for rows in (1, 16, 17, 32, 33, 64)}
    assert len({settings.split for settings in found.values()}) == 1
    for rows, settings in found.items():
        # the accumulator and one group's product, a float32 each
        assert 2 * settings.block_columns * block_rows(rows) <= MULTIPROCESSOR_REGISTERS
        assert 1 <= settings.split <= max(1, shape[1] // 128)


def test_the_products_of_a_layer_give_every_multiprocessor_about_one_program_whatever_the_rows() -> None:
    for columns, depth in measured_shapes():
        found = [ring_settings(columns, depth, rows=rows) for rows in (1, 16, 17, 32, 33, 64)]
        chosen = {(ring.split, ring.tiles) for ring in found if ring is not None}
        if columns >= 65_536:
            assert chosen == set()
            continue
        ((split, tiles),) = chosen
        assert 0.8 * MULTIPROCESSORS <= columns // (128 * tiles) * split <= 1.05 * MULTIPROCESSORS
        assert depth // 128 >= split


def test_other_products_have_no_ring() -> None:
    assert ring_settings(5120, 2048, rows=1) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_columns": 96}, "block_columns is 96"),
        ({"split": 0}, "split 0"),
        ({"stages": 0}, "stages 0"),
        ({"warps": 2}, "warps 2"),
        ({"fetch": -1}, "fetch -1"),
    ],
    ids=str,
)
def test_settings_the_kernel_does_not_take_are_refused(wrong: dict[str, int], message: str) -> None:
    good = {"block_columns": 64, "split": 1, "stages": 3, "warps": 4, "fetch": 0}
    with pytest.raises(ValueError, match=message):
        LinearSettings(**{**good, **wrong})

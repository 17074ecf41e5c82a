"""The inverse of a small unit lower triangular matrix inside a kernel, by products alone. Knows no op.

Blocks of 4 rows are inverted by their short Neumann series; then blocks are joined: with D the inverse of the
diagonal blocks and N what stands below them, (D⁻¹ + N)⁻¹ is D - D N D for two blocks, and (I - M + M² - M³) D
with M = D N for four. A Neumann series over all rows at once would need powers up to the size, whose entries
grow like binomials before they cancel. No product here has 64 rows: those would be warp-group instructions,
in front of which Triton 3.6 may order memory wrongly.
"""

from __future__ import annotations

from sparkle.kernels.jit import Block, constexpr, jit, tl


@jit()
def inverse_of_16(
    b_lower: Block, o_i: Block, o_j: Block, PRECISION: constexpr, ROWS: constexpr = 16
) -> Block:
    """(I + b_lower)⁻¹ float32 [..., 16, 16]; b_lower strictly lower, o_i, o_j its row and column numbers.

    Of b_lower only the first ROWS rows are not 0; products that would be 0 are left out, so the result is the
    same for every ROWS.
    """
    b_n = tl.where(o_i // 4 == o_j // 4, b_lower, 0.0)
    b_d = _finished(b_n, tl.where(o_i == o_j, 1.0, 0.0) - b_n, PRECISION)
    if ROWS > 4:
        b_d = _joined(b_d, tl.where(o_i // 4 == o_j // 4, 0.0, b_lower), PRECISION, ROWS)
    return b_d


@jit()
def inverse_of_64(
    b_fours: Block, b_pairs: Block, b_half: Block, PRECISION: constexpr
) -> tuple[Block, Block, Block]:
    """(I + L)⁻¹ of a strictly lower L [64, 64], all in registers: its upper left, lower left and lower right
    quarter, float32 [32, 32]; the fourth is zero.

    Of L: b_fours [4, 16, 16], the diagonal blocks of 16; b_pairs [2, 16, 16], those below the first and the
    third; b_half [32, 32], the lower left quarter.
    """
    o_16 = tl.arange(0, 16)
    b_d = inverse_of_16(b_fours, o_16[None, :, None], o_16[None, None, :], PRECISION)
    b_upper, b_lower = tl.split(tl.permute(tl.reshape(b_d, (2, 2, 16, 16)), (0, 2, 3, 1)))  # [2, 16, 16]
    b_below = _below(b_upper, b_pairs, b_lower, PRECISION)
    # [2, 32, 32], the inverses of two blocks of 32 rows
    b_d = _stacked(_beside(b_upper, tl.zeros_like(b_upper)), _beside(b_below, b_lower))
    b_upper, b_lower = tl.split(tl.permute(b_d, (1, 2, 0)))
    return b_upper, _below(b_upper, b_half, b_lower, PRECISION), b_lower


@jit()
def _product(b_a: Block, b_b: Block, PRECISION: constexpr) -> Block:
    """PRECISION: "fp16" for operands of as many bits as tf32's at half the instructions, or tl.dot's."""
    # to a type checker a constexpr is a number
    if PRECISION == "fp16":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
        return tl.dot(b_a.to(tl.float16), b_b.to(tl.float16))
    else:  # noqa: RET505 the compiler leaves out a branch, not what follows a return
        return tl.dot(b_a, b_b, input_precision=PRECISION)


@jit()
def _below(b_upper: Block, b_n: Block, b_lower: Block, PRECISION: constexpr) -> Block:
    """What the inverse has below its first block, from both blocks' inverses and what L has there."""
    return -_product(b_lower, _product(b_n, b_upper, PRECISION), PRECISION)


@jit()
def _beside(b_left: Block, b_right: Block) -> Block:
    """[2, 16, 16] and the same to [2, 16, 32]."""
    return tl.reshape(tl.permute(tl.join(b_left, b_right), (0, 1, 3, 2)), (2, 16, 32))


@jit()
def _stacked(b_top: Block, b_bottom: Block) -> Block:
    """[2, 16, 32] and the same to [2, 32, 32]."""
    return tl.reshape(tl.permute(tl.join(b_top, b_bottom), (0, 3, 1, 2)), (2, 32, 32))


@jit()
def _joined(b_d: Block, b_n: Block, PRECISION: constexpr, ROWS: constexpr) -> Block:
    b_m = _product(b_d, b_n, PRECISION)
    b_d -= _product(b_m, b_d, PRECISION)
    # of two blocks M² is 0
    return b_d if ROWS <= 8 else _finished(b_m, b_d, PRECISION)


@jit()
def _finished(b_m: Block, b_y: Block, PRECISION: constexpr) -> Block:
    """(I + M²) Y, which with Y = (I - M) D is the whole series."""
    b_square = _product(b_m, b_m, PRECISION)
    return b_y + _product(b_square, b_y, PRECISION)

"""SiLU(x · gateᵀ) · (x · upᵀ), quantised: the first half of an MLP. Knows no layers.

With few rows it is one kernel. Each of its programs has a group of 128 columns: a unit's two tiles are rows
of the gate and the rows of up that they meet, so the products stay in registers, and the group's largest
value is known where it is quantised.
"""

from __future__ import annotations

from sparkle.kernels.fp8_linear import fp8_linear, fp8_linear_reference
from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, empty_rows, require_factors
from sparkle.kernels.silu_mul_quant import silu_mul_quantise, silu_mul_quantise_reference
from sparkle.kernels.tuning import MAX_BLOCK_ROWS, RING_STAGES, block_rows
from sparkle.kernels.weight_ring import (
    TILE_ROWS,
    ask_for_rows,
    ask_for_weights,
    fill_with_weights,
    following,
    in_tiles,
    keep,
    keep_row_scales,
    power_of_two,
    turn,
    unit_products,
    wait_and_fill_with_rows,
)


def gate_up_silu_quantise(x: Fp8Rows, w: Fp8Blocks) -> Fp8Rows:
    """y = SiLU(g) · u in 1x128 e4m3, [g, u] = x · wᵀ as fp8_linear gives it, in bfloat16.

    x [M, K], w [2N, K], the gate's N rows first, N a multiple of 128; returns [M, N].
    """
    require_factors(x, w)
    if w.values.shape[0] % (2 * GROUP):
        raise ValueError(f"w has {w.values.shape[0]} rows but must have a multiple of {2 * GROUP}")
    if not x.values.is_cuda:
        return gate_up_silu_quantise_reference(x, w)
    if x.values.shape[0] > MAX_BLOCK_ROWS:
        return silu_mul_quantise(fp8_linear(x, w))
    return gate_up_few_rows(x, w, pdl=True)


def gate_up_silu_quantise_reference(x: Fp8Rows, w: Fp8Blocks) -> Fp8Rows:
    """See gate_up_silu_quantise."""
    return silu_mul_quantise_reference(fp8_linear_reference(x, w))


def gate_up_few_rows(x: Fp8Rows, w: Fp8Blocks, *, pdl: bool) -> Fp8Rows:
    """Launches the kernel of gate_up_silu_quantise; `pdl`: as a programmatic dependent launch."""
    rows, (both, depth) = x.values.shape[0], w.values.shape
    columns, width, groups = both // 2, block_rows(rows), depth // GROUP
    out = empty_rows(rows, columns, x.values.device)
    if rows:
        gate_up_kernel[columns // GROUP, -(-rows // width)](
            in_tiles(w.values, TILE_ROWS),
            in_tiles(x.values, width),
            x.scales,
            w.scales,
            out.values,
            out.scales,
            rows,
            columns,
            GROUPS=groups,
            BM=width,
            STAGES=RING_STAGES[width],
            SLOTS=power_of_two(groups),
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


@gluon_jit("rows", "columns")
def gate_up_kernel(
    w_tiles: Block,  # e4m3 [2 * columns, GROUPS * 128] in tiles of 64 rows
    x_tiles: Block,  # e4m3 [rows, GROUPS * 128] in tiles of BM rows
    p_xs: Pointer,  # float32 [GROUPS, rows]
    p_ws: Pointer,  # float32 [2 * columns / 128, GROUPS]
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [columns / 128, rows]
    rows: int,
    columns: int,
    GROUPS: constexpr,
    BM: constexpr,
    STAGES: constexpr,
    SLOTS: constexpr,
    PDL: constexpr,
) -> None:
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 32])
    by_row: constexpr = gl.SliceLayout(0, mma)
    line: constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i_n, i_m = gl.program_id(0), gl.program_id(1) * BM
    run = (i_n * 128, 64, i_n * 128 + 128, columns, 0, GROUPS)
    ring = fill_with_weights(w_tiles, x_tiles, run, BM, STAGES)
    p_ws += i_n * GROUPS + gl.minimum(gl.arange(0, SLOTS, line), GROUPS - 1)
    s_gate = keep(p_ws, SLOTS)
    s_up = keep(p_ws + columns // 128 * GROUPS, SLOTS)
    ahead = wait_and_fill_with_rows(x_tiles, i_m, ring, run, STAGES, PDL)
    s_xs = keep_row_scales(p_xs, 0, GROUPS, i_m, rows, SLOTS, BM)
    gl.thread_barrier()
    zero = gl.zeros([64, BM], gl.float32, mma)
    b_first, b_second = zero, zero
    stage, phase = 0, 0
    # written out twice: as a loop, Triton 3.6 takes b_first for the zeros it begins with
    for _ in gl.static_range(2):
        b_gate, b_up = zero, zero
        for i_group in range(GROUPS):
            b_unit_gate, b_unit_up = unit_products(ring, stage, phase, BM)
            ask_for_weights(w_tiles, ring, stage, ahead, run, BM)
            ask_for_rows(x_tiles, i_m, ring, stage, ahead, run)
            ahead = following(ahead, run)
            stage, phase = turn(stage, phase, STAGES)
            b_xs = s_xs.index(i_group).load(by_row)
            b_gate += b_unit_gate * (s_gate.index(i_group).load(by_row) * b_xs)[None, :]
            b_up += b_unit_up * (s_up.index(i_group).load(by_row) * b_xs)[None, :]
        # many rows go through memory in bfloat16: a row is the same beside few and many, but for the products
        b_gate = b_gate.to(gl.bfloat16).to(gl.float32)
        b_up = b_up.to(gl.bfloat16).to(gl.float32)
        b_first = b_second
        b_second = b_gate * (1.0 / (1.0 + gl.exp(-b_gate))) * b_up
    if PDL:
        # at the end: waiting programs that start early would take the place of working ones
        tl.extra.cuda.gdc_launch_dependents()
    # 448 and 1e-10 are E4M3_MAX and AMAX_FLOOR; rounded divisions, as in quantise_groups
    b_amax = gl.maximum(gl.max(gl.abs(b_first), axis=0), gl.max(gl.abs(b_second), axis=0))
    b_amax = gl.maximum(b_amax, 1e-10)
    b_most = gl.full([BM], 448.0, gl.float32, by_row)
    o_m = i_m + gl.arange(0, BM, by_row)
    gl.store(p_scales + i_n * rows + o_m, gl.div_rn(b_amax, b_most), mask=o_m < rows)
    b_inverse = gl.div_rn(b_most, b_amax)[None, :]
    store_values(p_values, b_first * b_inverse, i_n * 128, i_m, rows, columns, BM)
    store_values(p_values, b_second * b_inverse, i_n * 128 + 64, i_m, rows, columns, BM)


@gluon_jit()
def store_values(
    p_values: Pointer, b_y: Block, i_n: Block, i_m: Block, rows: Block, columns: Block, BM: constexpr
) -> None:
    """Stores float32 [64, BM], columns on the first axis, as e4m3, eight columns a thread."""
    pieces: constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
    o_n = i_n + gl.arange(0, 64, gl.SliceLayout(1, pieces))[:, None]
    o_m = i_m + gl.arange(0, BM, gl.SliceLayout(0, pieces))[None, :]
    b_values = gl.convert_layout(b_y.to(gl.float8e4nv), pieces)
    gl.store(p_values + o_m * columns + o_n, b_values, mask=o_m < rows)

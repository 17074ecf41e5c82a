"""SiLU(x · gateᵀ) · (x · upᵀ), quantised: the first half of an MLP. Knows no layers.

With few rows it is one kernel. Each of its programs has a group of 128 columns: its two tiles are the rows of
the gate and the rows of up that they meet, so the products stay in registers, and the group's largest value
is known where it is quantised.
"""

from __future__ import annotations

from sparkle.kernels.fp8_linear import fp8_linear, fp8_linear_reference
from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, empty_rows, require_factors
from sparkle.kernels.silu_mul_quant import silu_mul_quantise, silu_mul_quantise_reference
from sparkle.kernels.tuning import MAX_BLOCK_ROWS, block_rows, ring_of
from sparkle.kernels.weight_ring import TILE_ROWS, in_tiles, power_of_two, tile_products


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
    settings = ring_of(1, 2, rows=rows)
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
            STAGES=settings.stages,
            ROW_STAGES=settings.row_stages,
            SLOTS=power_of_two(groups),
            PDL=pdl,
            num_warps=settings.warps,
            launch_pdl=pdl,
        )
    return out


@gluon_jit("rows", "columns")
def gate_up_kernel(
    w_tiles: Block,  # e4m3 [2 * columns, GROUPS * 128] in tiles of 128 rows
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
    ROW_STAGES: constexpr,
    SLOTS: constexpr,
    PDL: constexpr,
) -> None:
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 32])
    by_row: constexpr = gl.SliceLayout(0, mma)
    i_n, i_m = gl.program_id(0) * 128, gl.program_id(1) * BM
    run = (i_n, columns, 0, GROUPS)
    b_gate, b_up = tile_products(
        w_tiles, x_tiles, p_xs, p_ws, run, i_m, rows, 2 * columns,
        GROUPS, 2, BM, STAGES, ROW_STAGES, SLOTS, PDL,
    )  # fmt: skip
    if PDL:
        # at the end: waiting programs that start early would take the place of working ones
        tl.extra.cuda.gdc_launch_dependents()
    # many rows go through memory in bfloat16: a row is the same beside few and many, but for the products
    b_gate = b_gate.to(gl.bfloat16).to(gl.float32)
    b_y = b_gate * (1.0 / (1.0 + gl.exp(-b_gate))) * b_up.to(gl.bfloat16).to(gl.float32)
    # 448 and 1e-10 are E4M3_MAX and AMAX_FLOOR; rounded divisions, as in quantise_groups
    b_amax = gl.maximum(gl.max(gl.abs(b_y), axis=0), 1e-10)
    b_most = gl.full([BM], 448.0, gl.float32, by_row)
    o_m = i_m + gl.arange(0, BM, by_row)
    gl.store(p_scales + i_n // 128 * rows + o_m, gl.div_rn(b_amax, b_most), mask=o_m < rows)
    # eight columns a thread, for stores of 8 bytes
    pieces: constexpr = gl.BlockedLayout([8, 1], [16, 2], [1, gl.num_warps()], [0, 1])
    b_values = (b_y * gl.div_rn(b_most, b_amax)[None, :]).to(gl.float8e4nv)
    o_n = i_n + gl.arange(0, 128, gl.SliceLayout(1, pieces))[:, None]
    o_m = i_m + gl.arange(0, BM, gl.SliceLayout(0, pieces))[None, :]
    gl.store(p_values + o_m * columns + o_n, gl.convert_layout(b_values, pieces), mask=o_m < rows)

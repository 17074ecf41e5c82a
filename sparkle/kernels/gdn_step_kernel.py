"""The states of the delta rule: folds in what was accepted, reads what is new. Knows no gates.

One program owns a head of one sequence, with all that it keeps between passes. So it folds in while the
kernels in front of it still run, and writes its window without asking who reads. Its state lies in shared
memory from first to last, and registers hold a few rows of it at a time: three programs find a place on a
multiprocessor, so all states of eight sequences are on their way at once. Products have the values on their
long side: then a state leaves shared memory in the registers in which the next product takes it.
"""

from __future__ import annotations

from sparkle.kernels.gdn_window import in_three
from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl

STEP = 32
"""Rows of the state, one a dimension of the key, that registers hold at a time."""


@gluon_jit()
def copy_rows(s_rows: Block, p_rows: Pointer, stride: constexpr, rows: Block, WARPS: constexpr) -> None:
    """Starts the copy of rows, `stride` elements apart, to shared memory; zeros past so many of them."""
    ROWS: constexpr = s_rows.shape[0]
    LENGTH: constexpr = s_rows.shape[1]
    # 16 bytes in a thread
    EACH: constexpr = 128 // s_rows.dtype.primitive_bitwidth
    LINES: constexpr = gl.BlockedLayout([1, EACH], [32 * EACH // LENGTH, LENGTH // EACH], [WARPS, 1], [1, 0])
    o_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LINES))
    o_place = gl.arange(0, LENGTH, layout=gl.SliceLayout(0, LINES))
    inside = (o_row < rows)[:, None] & (o_place < LENGTH)[None, :]
    o_x = (o_row * stride)[:, None] + o_place[None, :]
    gl.nvidia.hopper.async_copy.async_copy_global_to_shared(s_rows, p_rows + o_x, mask=inside)


@gluon_jit()
def store_rows(p_rows: Pointer, s_rows: Block, stride: constexpr, WARPS: constexpr) -> None:
    """The way back."""
    ROWS: constexpr = s_rows.shape[0]
    LENGTH: constexpr = s_rows.shape[1]
    # 16 bytes in a thread
    EACH: constexpr = 128 // s_rows.dtype.primitive_bitwidth
    LINES: constexpr = gl.BlockedLayout([1, EACH], [32 * EACH // LENGTH, LENGTH // EACH], [WARPS, 1], [1, 0])
    o_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LINES))[:, None]
    o_place = gl.arange(0, LENGTH, layout=gl.SliceLayout(0, LINES))[None, :]
    gl.store(p_rows + o_row * stride + o_place, s_rows.load(LINES))


@gluon_jit()
def arrived() -> None:
    """Waits until every thread's copies have come."""
    gl.nvidia.hopper.async_copy.commit_group()
    gl.nvidia.hopper.async_copy.wait_group(0)
    gl.thread_barrier()


@gluon_jit()
def decays(p_log_decay: Pointer, accepted: Block, HEADS: constexpr, W: constexpr, WARPS: constexpr) -> Block:
    """The decay since each accepted token, float32 [W], and that of all; each thread adds for itself."""
    COLUMNS: constexpr = gl.BlockedLayout([W, 1], [1, 32], [1, WARPS], [0, 1])
    o_j = gl.arange(0, W, layout=gl.SliceLayout(1, COLUMNS))[:, None]
    o_i = gl.arange(0, W, layout=gl.SliceLayout(0, COLUMNS))[None, :]
    behind = (o_j < accepted) & (o_j > o_i)
    b_g = gl.load(p_log_decay + (o_j + o_i * 0) * HEADS, mask=behind, other=0.0)
    b_since = gl.exp(gl.sum(b_g, axis=0))
    o_j = gl.arange(0, W, layout=gl.BlockedLayout([W], [32], [WARPS], [0]))
    b_g = gl.load(p_log_decay + o_j * HEADS, mask=o_j < accepted, other=0.0)
    return b_since, gl.exp(gl.sum(b_g, axis=0))


@gluon_jit()
def fold(
    s_state: Block,  # float32 [DIM / STEP, STEP, DIM]: keys' dimensions, values'
    s_keys: Block,  # bfloat16 [W, DIM]
    b_w: Block,  # float32 [DIM, W], a left operand: what is left of each token's write
    decay: Block,
    MMA: constexpr,
) -> None:
    """S ← decay S + Σ_j k_j w_jᵀ, in place."""
    STEPS: constexpr = s_state.shape[0]
    STEP: constexpr = s_state.shape[1]
    DIM: constexpr = s_state.shape[2]
    RIGHT: constexpr = gl.DotOperandLayout(1, MMA, 2)
    b_high, b_middle, b_low = in_three(b_w)
    for i in gl.static_range(STEPS):
        s_rows = s_state.index(i).permute([1, 0])
        # keys are exact in bfloat16
        b_k = s_keys.slice(i * STEP, STEP, 1).load(RIGHT)
        b_none = gl.zeros([DIM, STEP], gl.float32, layout=MMA)
        b_change = gl.nvidia.ampere.mma_v2(b_low, b_k, b_none)
        b_change = gl.nvidia.ampere.mma_v2(b_middle, b_k, b_change)
        b_change = gl.nvidia.ampere.mma_v2(b_high, b_k, b_change)
        # a sum of its own: added to the state by the tensor core, it would be cut off instead of rounded
        s_rows.store(s_rows.load(MMA) * decay + b_change)


@gluon_jit()
def read(s_state: Block, s_new: Block, MMA: constexpr) -> Block:
    """Sᵀk and Sᵀq, float32 [DIM, W], of the rows bfloat16 [2, W, DIM] in s_new: keys, queries."""
    STEPS: constexpr = s_state.shape[0]
    STEP: constexpr = s_state.shape[1]
    DIM: constexpr = s_state.shape[2]
    LEFT: constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: constexpr = gl.DotOperandLayout(1, MMA, 2)
    W: constexpr = s_new.shape[1]
    b_none = gl.zeros([DIM, W], gl.float32, layout=MMA)
    b_k_low, b_k_high, b_read = b_none, b_none, b_none
    for i in gl.static_range(STEPS):
        b_high, b_middle, _ = in_three(s_state.index(i).permute([1, 0]).load(LEFT))
        b_k = s_new.index(0).slice(i * STEP, STEP, 1).permute([1, 0]).load(RIGHT)
        b_q = s_new.index(1).slice(i * STEP, STEP, 1).permute([1, 0]).load(RIGHT)
        b_k_low = gl.nvidia.ampere.mma_v2(b_middle, b_k, b_k_low)
        b_k_high = gl.nvidia.ampere.mma_v2(b_high, b_k, b_k_high)
        b_read = gl.nvidia.ampere.mma_v2(b_middle, b_q, b_read)
        b_read = gl.nvidia.ampere.mma_v2(b_high, b_q, b_read)
    return b_k_high + b_k_low, b_read


@gluon_jit()
def folded(
    p_state: Pointer,  # of the head
    p_key: Pointer,
    p_log_decay: Pointer,
    p_write: Pointer,
    accepted: Block,
    HEADS: constexpr,
    DIM: constexpr,
    STEP: constexpr,
    W: constexpr,
    WARPS: constexpr,
    MMA: constexpr,
) -> Block:
    """The state with the accepted tokens in it, in shared memory, and stored where it was."""
    LEFT: constexpr = gl.DotOperandLayout(0, MMA, 2)
    # 8 values of 4 keys' dimensions lie in different banks
    s_state = gl.allocate_shared_memory(
        gl.float32, [DIM // STEP, STEP, DIM], gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    )
    s_keys = gl.allocate_shared_memory(gl.bfloat16, [W, DIM], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    copy_rows(s_keys, p_key, HEADS * DIM, accepted, WARPS)
    for i in gl.static_range(DIM // STEP):
        copy_rows(s_state.index(i), p_state + i * (STEP * DIM), DIM, STEP, WARPS)
    o_v = gl.arange(0, DIM, layout=gl.SliceLayout(1, LEFT))[:, None]
    o_t = gl.arange(0, W, layout=gl.SliceLayout(0, LEFT))[None, :]
    kept = (o_t < accepted) & (o_v < DIM)
    b_w = gl.load(p_write + o_t * (HEADS * DIM) + o_v, mask=kept, other=0.0)
    b_since, decay = decays(p_log_decay, accepted, HEADS, W, WARPS)
    b_since = gl.convert_layout(b_since, gl.SliceLayout(0, LEFT))
    arrived()
    fold(s_state, s_keys, b_w * b_since[None, :], decay, MMA)
    gl.thread_barrier()
    for i in gl.static_range(DIM // STEP):
        store_rows(p_state + i * (STEP * DIM), s_state.index(i), DIM, WARPS)
    return s_state


@gluon_jit()
def solved(b_r: Block, b_o: Block, s_parts: Block, s_last: Block, MMA: constexpr) -> Block:
    """P r and what is read, o + Q r, float32 [DIM, W] transposed: P in three parts and Q's first, Q's second.

    Of products of parts the least are left out; more of them for what enters the state.
    """
    DIM: constexpr = b_r.shape[0]
    W: constexpr = b_r.shape[1]
    RIGHT: constexpr = gl.DotOperandLayout(1, MMA, 2)
    b_high, b_middle, b_low = in_three(gl.convert_layout(b_r, gl.DotOperandLayout(0, MMA, 2)))
    b_p0 = s_parts.slice(0, W).load(RIGHT)
    b_p1 = s_parts.slice(W, W).load(RIGHT)
    b_p2 = s_parts.slice(2 * W, W).load(RIGHT)
    b_q0 = s_parts.slice(3 * W, W).load(RIGHT)
    b_w = gl.nvidia.ampere.mma_v2(b_low, b_p0, gl.zeros([DIM, W], gl.float32, layout=MMA))
    b_w = gl.nvidia.ampere.mma_v2(b_middle, b_p1, b_w)
    b_w = gl.nvidia.ampere.mma_v2(b_high, b_p2, b_w)
    b_w = gl.nvidia.ampere.mma_v2(b_middle, b_p0, b_w)
    b_w = gl.nvidia.ampere.mma_v2(b_high, b_p1, b_w)
    b_w = gl.nvidia.ampere.mma_v2(b_high, b_p0, b_w)
    b_o = gl.nvidia.ampere.mma_v2(b_middle, b_q0, b_o)
    b_o = gl.nvidia.ampere.mma_v2(b_high, s_last.load(RIGHT), b_o)
    b_o = gl.nvidia.ampere.mma_v2(b_high, b_q0, b_o)
    return b_w, b_o


@gluon_jit()
def gdn_step_kernel(
    p_states: Pointer,  # GdnMemory's four
    p_keys: Pointer,
    p_log_decays: Pointer,
    p_writes: Pointer,
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_accepted: Pointer,  # int64 [S]
    p_mixed: Pointer,  # bfloat16 [T, (2 KEY_HEADS + HEADS) DIM]: queries, keys, values
    p_scales: Pointer,  # GdnWindow's two
    p_parts: Pointer,
    p_out: Pointer,  # bfloat16 [T, HEADS, DIM]
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DIM: constexpr,
    STEP: constexpr,
    W: constexpr,
    WARPS: constexpr,
    PDL: constexpr,
) -> None:
    i_head, i_span = gl.program_id(0), gl.program_id(1).to(gl.int64)
    slot = gl.load(p_slots + i_span)
    accepted = gl.load(p_accepted + i_span)
    start = gl.load(p_starts + i_span)
    tokens = gl.load(p_starts + i_span + 1) - start
    if slot < 0:
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    MMA: constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    # the memory is neither of the kernels in front, and they started behind all that is: no need to wait
    p_state = p_states + (slot * HEADS + i_head) * (DIM * DIM)
    p_key = p_keys + (slot * (W * HEADS) + i_head) * DIM
    p_log_decay = p_log_decays + slot * (W * HEADS) + i_head
    p_write = p_writes + (slot * (W * HEADS) + i_head) * DIM
    s_state = folded(p_state, p_key, p_log_decay, p_write, accepted, HEADS, DIM, STEP, W, WARPS, MMA)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    ROW: constexpr = (2 * KEY_HEADS + HEADS) * DIM
    p_new = p_mixed + start * ROW
    p_query = p_new + i_head // (HEADS // KEY_HEADS) * DIM
    p_square = p_parts + (i_span * HEADS + i_head) * (6 * W * W)
    s_new = gl.allocate_shared_memory(gl.bfloat16, [2, W, DIM], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    s_parts = gl.allocate_shared_memory(gl.bfloat16, [4 * W, W], gl.SwizzledSharedLayout(8, 1, 1, [1, 0]))
    s_last = gl.allocate_shared_memory(gl.bfloat16, [W, W], gl.SwizzledSharedLayout(8, 1, 1, [1, 0]))
    copy_rows(s_new.index(0), p_query + KEY_HEADS * DIM, ROW, tokens, WARPS)
    copy_rows(s_new.index(1), p_query, ROW, tokens, WARPS)
    copy_rows(s_parts, p_square, W, 4 * W, WARPS)
    copy_rows(s_last, p_square + 4 * W * W, W, W, WARPS)
    o_v = gl.arange(0, DIM, layout=gl.SliceLayout(1, MMA))[:, None]
    o_t = gl.arange(0, W, layout=gl.SliceLayout(0, MMA))
    inside = (o_t < tokens)[None, :] & (o_v < DIM)
    p_v = p_new + (2 * KEY_HEADS + i_head) * DIM
    b_v = gl.load(p_v + (o_t * ROW)[None, :] + o_v, mask=inside, other=0.0)
    p_scale = p_scales + (i_span * HEADS + i_head) * (3 * W) + o_t
    b_key_scale, b_query_scale = gl.load(p_scale), gl.load(p_scale + W)
    arrived()
    b_r, b_o = read(s_state, s_new, MMA)
    b_r = b_v.to(gl.float32) - b_key_scale[None, :] * b_r
    b_w, b_o = solved(b_r, b_query_scale[None, :] * b_o, s_parts, s_last, MMA)
    o_row = (o_t * (HEADS * DIM))[None, :] + o_v
    gl.store(p_out + (start * HEADS + i_head) * DIM + o_row, b_o.to(gl.bfloat16), mask=inside)
    gl.store(p_write + o_row, b_w)
    store_rows(p_key, s_new.index(0), HEADS * DIM, WARPS)
    gl.store(p_log_decay + o_t * HEADS, gl.load(p_scale + 2 * W))

"""Programmatic dependent launch: a kernel may start while the one in front still runs, up to its wait.

Every kernel that is launched so must wait before it touches what another kernel writes, also where it reads
nothing of the kernel in front: the wait of the kernel behind it covers what came before only through its own.
Knows no op.
"""

from __future__ import annotations

from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl


@jit()
def start_next_then_wait() -> None:
    """For ops on rows, which leave most of the chip idle: the product behind them may start at once.

    It then fetches weights while the rows are computed. A product in front of another lets that start only at
    its end: waiting programs would take the place of working ones.
    """
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()


@jit()
def wait_then_start_next() -> None:
    """For few programs between two products, which themselves start as soon as the one in front does.

    They lie beside its programs, ready for its end; the product behind it takes no place until then.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@jit()
def fetch_weights_then_wait(p_w: Pointer, o_n: Block, start: Block, depth: Block, GROUPS: constexpr) -> None:
    """For products: asks the cache for the first GROUPS groups of K of the weight rows o_n, then waits.

    Nobody writes weights, so they need not wait. Stands before the loop over K: if the wait were inside it,
    the loop's first loads would move in front.
    """
    for i_group in tl.static_range(GROUPS):
        column = tl.minimum(start + i_group, depth // 128 - 1) * 128
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [p_w + o_n * depth + column],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.extra.cuda.gdc_wait()

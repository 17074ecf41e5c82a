"""softplus inside a kernel, which has no log1p. Knows no op."""

from __future__ import annotations

from sparkle.kernels.jit import Block, jit, tl


@jit()
def softplus(b_x: Block) -> Block:
    """log(1 + exp(x)), also where exp(x) is lost beside 1 (Kahan's form)."""
    b_exp = tl.exp(tl.minimum(b_x, 20.0))
    b_one = 1.0 + b_exp
    b_small = tl.log(b_one) * (b_exp / tl.where(b_one == 1.0, 1.0, b_one - 1.0))
    return tl.where(b_x > 20.0, b_x, tl.where(b_one == 1.0, b_exp, b_small))

"""A gate inside a kernel: times a sigmoid, by one division. Knows no op."""

from __future__ import annotations

from sparkle.kernels.jit import Block, jit, tl


@jit()
def times_sigmoid(b_x: Block, b_gate: Block) -> Block:
    """x · sigmoid(gate), float32 both; SiLU(x) where both are x.

    A product with tl.sigmoid divides too, and takes four instructions more: over many rows ops have time for
    about twenty a value while memory brings the next.
    """
    return b_x / (1.0 + tl.exp2(b_gate * -1.4426950408889634))  # log2(e)

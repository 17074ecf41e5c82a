"""Reads off PTX whether the tensor cores could read shared memory before it is written.

What threads store, a warp-group product sees only after each storing thread has executed fence.proxy.async
and then all have met at a barrier. Triton 3.6 sometimes emits the barrier before the fence (where the
product's other operand is loaded into registers in between), and the products of two runs differ.
"""

from __future__ import annotations

import re

STEP = re.compile(r"(st\.shared|stmatrix|fence\.proxy\.async|bar\.sync|wgmma\.mma_async)")


def unordered_products(ptx: str) -> int:
    """How many products, in the order of the text, follow a store without a fence and then a barrier."""
    state, count = "ordered", 0
    for step in STEP.findall(ptx):
        if step in ("st.shared", "stmatrix"):
            state = "stored"
        elif step == "fence.proxy.async" and state == "stored":
            state = "fenced"
        elif step == "bar.sync" and state == "fenced":
            state = "ordered"
        elif step == "wgmma.mma_async" and state != "ordered":
            count += 1
    return count


def stored_tensors(ttgir: str) -> int:
    """How many tensors threads store to shared memory as such, for a product or to load them again.

    Where there is none, every product's operands are in registers or were copied from global memory, and a
    store that unordered_products sees only moves values between threads.
    """
    return len(re.findall(r"ttg\.local_(?:alloc|store) %", ttgir))

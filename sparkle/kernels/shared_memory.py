"""How a multiprocessor divides its memory between shared memory and cache. Knows of kernels the names alone.

It cannot divide anew while something runs on it. Triton asks for the most shared memory where a program needs
more than 48 KiB and leaves all others to the driver, so a kernel of one kind does not start beside one of the
other, however early it is launched.
"""

from __future__ import annotations

import ctypes

from sparkle.kernels.jit import knobs

SIDE_BY_SIDE = (
    "narrow_linear_kernel",
    "gdn_inputs_kernel",
    "gdn_window_kernel",
    "gdn_step_kernel",
    "gated_rms_norm_kernel",
    "add_rms_norm_kernel",
    "join_parts_kernel",
)
"""What lies beside a product: Gated DeltaNet's step, norms, and the join behind attention.

All kernels alike would make passes of one row slower.
"""
PREFERRED_CARVEOUT = 9
"""The driver's number for this property of a function, whose value is a percentage."""


def divide_memory_alike() -> None:
    """From now on the kernels of SIDE_BY_SIDE ask, as they are loaded, for all the shared memory there is."""
    if knobs is not None:
        knobs.runtime.kernel_load_end_hook.add(_ask_for_all)


def _ask_for_all(_module: object, function: int, name: str, _files: object, _hash: str) -> None:
    if name not in SIDE_BY_SIDE:
        return
    driver = ctypes.CDLL("libcuda.so.1")
    refused = driver.cuFuncSetAttribute(ctypes.c_void_p(function), PREFERRED_CARVEOUT, 100)
    if refused:
        raise RuntimeError(
            f"kernel {name} cannot ask for shared memory: the driver says {refused}, which its list of "
            "CUresult explains"
        )

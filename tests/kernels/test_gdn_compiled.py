"""What the compiler makes of the kernels of Gated DeltaNet's step on the H200."""

from __future__ import annotations

import pytest

from sparkle.kernels import gdn_inputs, gdn_step
from sparkle.kernels.gdn_inputs import gdn_inputs_kernel
from sparkle.kernels.gdn_memory import TAPS, WINDOW
from sparkle.kernels.gdn_step_kernel import STEP, gdn_step_kernel
from sparkle.kernels.gdn_window import gdn_window_kernel
from tests.kernels.ahead_of_time import THREE_PROGRAMS_SHARED_BYTES, compile_for_h200
from tests.kernels.proxy_order import unordered_products

HEADS = {"KEY_HEADS": 16, "HEADS": 48, "DIM": 128, "W": WINDOW, "PDL": True}
CHANNELS = (2 * 16 + 48) * 128
FLOATS = ("p_ba", "p_conv", "p_a_log", "p_dt_bias", "p_states", "p_log_decays", "p_writes", "p_scales")
NARROW = ("p_qkv", "p_columns", "p_inputs", "p_mixed", "p_keys", "p_parts", "p_out")
TYPES = {
    **dict.fromkeys(FLOATS, "*fp32"),
    **dict.fromkeys(NARROW, "*bf16"),
    **dict.fromkeys(("p_starts", "p_slots", "p_accepted"), "*i64"),
    **dict.fromkeys(("stride_qkv", "stride_ba"), "i32"),
}


def test_step() -> None:
    constants = HEADS | {"STEP": STEP, "WARPS": 8}
    compiled = compile_for_h200(gdn_step_kernel, TYPES, constants, warps=8, registers=gdn_step.REGISTERS)
    assert compiled.stack_bytes == 0
    # three programs of 256 threads on a multiprocessor of 65,536 registers
    assert compiled.registers <= 80
    assert compiled.shared_bytes <= THREE_PROGRAMS_SHARED_BYTES
    assert unordered_products(compiled.ptx) == 0
    assert "wgmma" not in compiled.ptx
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in compiled.ptx
    # the state is read and written before the wait, what the kernels in front leave after it
    before, behind = compiled.ptx.split("griddepcontrol.launch_dependents")
    assert before.count("cp.async.cg.shared.global") == 17, "the state in 16 copies of a thread, and keys"
    assert before.count("st.global.v4") == 16
    assert behind.count("cp.async.cg.shared.global") == 4, "keys, queries and both solved matrices"
    assert behind.count("st.global.v4") == 1


@pytest.mark.parametrize("width", [1, 4, 8, WINDOW])
def test_window(width: int) -> None:
    compiled = compile_for_h200(gdn_window_kernel, TYPES, HEADS | {"ROWS": width}, warps=1)
    assert compiled.stack_bytes == 0
    assert unordered_products(compiled.ptx) == 0
    assert compiled.ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 3 * 8 * 2
    before, behind = compiled.ptx.split("griddepcontrol.wait")
    assert "griddepcontrol.launch_dependents" in before
    assert "st.global" not in before
    assert behind.count("ld.global.v4") >= 32, "queries and keys may not be read before the wait"


@pytest.mark.parametrize("width", [1, 4, 8, WINDOW])
def test_inputs(width: int) -> None:
    constants = {
        **{"CHANNELS": CHANNELS, "BC": gdn_inputs.CHANNELS_PER_PROGRAM, "ROWS": width},
        **{"W": WINDOW, "TAPS": TAPS, "PDL": True},
    }
    aligned = frozenset({"stride_qkv"})
    compiled = compile_for_h200(
        gdn_inputs_kernel, TYPES, constants, aligned=aligned, warps=gdn_inputs.WARPS, stages=1
    )
    assert compiled.stack_bytes == 0
    before, behind = compiled.ptx.split("griddepcontrol.wait")
    assert before.count("ld.global") == 1, "only the weights may be read before the wait"
    # whoever starts early may read what was written in front of this kernel
    assert "griddepcontrol.launch_dependents" in behind

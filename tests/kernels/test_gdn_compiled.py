"""What the compiler makes of the kernels of Gated DeltaNet's step on the H200."""

from __future__ import annotations

import pytest

from sparkle.kernels import gdn_inputs, gdn_step, gdn_window
from sparkle.kernels.gdn_inputs import gdn_inputs_kernel
from sparkle.kernels.gdn_memory import PARTS, TAPS, WINDOW
from sparkle.kernels.gdn_step_kernel import gdn_step_kernel
from sparkle.kernels.gdn_window import gdn_window_kernel
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
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
    constants = HEADS | {"BV": 128 // PARTS}
    compiled = compile_for_h200(gdn_step_kernel, TYPES, constants, warps=gdn_step.WARPS, stages=1)
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
    assert unordered_products(compiled.ptx) == 0
    assert "wgmma" not in compiled.ptx
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in compiled.ptx
    # the state is read and written before the wait, what the kernels in front leave after it
    before, behind = compiled.ptx.split("griddepcontrol.launch_dependents")
    assert before.count("ld.global.v4") >= 16
    assert before.count("st.global.v4") == 16
    assert 0 < behind.count("st.global.v4") < 16


@pytest.mark.parametrize("width", [1, 4, 8, WINDOW])
def test_window(width: int) -> None:
    constants = HEADS | {"WIDTH": width, "PRECISION": gdn_window.PRECISION}
    compiled = compile_for_h200(gdn_window_kernel, TYPES, constants, warps=gdn_window.WARPS, stages=1)
    assert compiled.stack_bytes == 0
    assert unordered_products(compiled.ptx) == 0
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in compiled.ptx
    before, behind = compiled.ptx.split("griddepcontrol.wait")
    assert "griddepcontrol.launch_dependents" in before
    assert "st.global" not in before
    assert behind.count("ld.global.v4") >= 16, "queries and keys may not be read before the wait"


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

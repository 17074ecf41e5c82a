"""Compiles kernels for the H200 on a machine without one, and reads what the compiler made of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

# triton has no types
import triton  # pyright: ignore[reportMissingTypeStubs] it has none, nor has what follows
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon import language as gluon_language  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon._runtime import GluonASTSource  # pyright: ignore[reportMissingTypeStubs]

SHARED_LIMIT_BYTES = 232_448
"""The most shared memory that one block of an H200 may have."""
TWO_PROGRAMS_SHARED_BYTES = 115_712
"""The most of which two find a place on one multiprocessor: half of its 228 KiB, less 1 KiB for each."""
THREE_PROGRAMS_SHARED_BYTES = 76_800
"""The most of which three do."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for sm_90."""

    ttgir: str
    """Triton's own form, before it becomes PTX."""
    ptx: str
    shared_bytes: int
    registers: int
    stack_bytes: int
    """Spilled registers live here: 0 is what a kernel should have."""


def compile_for_h200(
    kernel: object,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    aligned: frozenset[str] = frozenset(),
    warps: int = 4,
    stages: int = 3,
    pdl: bool = True,
    registers: int | None = None,
) -> Compiled:
    """`types` in Triton's spelling ("*fp8e4nv", "i32") for each argument, `constants` for each constexpr.

    Pointers are taken as aligned to 16 bytes, as torch's are, and so are the integers in `aligned`: multiples
    of 16. Kernels may be in Triton or in Gluon. A thread has at most `registers`, 255 where that is None.
    """
    function = cast(Any, kernel)
    unknown = {parameter.name for parameter in function.params if parameter.do_not_specialize}
    # a launch would know nothing of them, and load piece by piece: another binary than the one looked at here
    assert not aligned & unknown, (
        f"{sorted(aligned & unknown)} are unspecialised: a launch takes none as aligned"
    )
    source_type = cast(Any, GluonASTSource if function.is_gluon() else ASTSource)
    names = cast(list[str], function.arg_names)
    signature = {name: types.get(name, "constexpr") for name in names}
    divisible = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or name in aligned
    }
    source = source_type(function, signature, constexprs=dict(constants), attrs=divisible)
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": pdl, "maxnreg": registers}
    result = cast(Any, triton).compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    usage = _resource_usage(cast(bytes, result.asm["cubin"]))
    return Compiled(
        ttgir=cast(str, result.asm["ttgir"]),
        ptx=cast(str, result.asm["ptx"]),
        shared_bytes=cast(int, result.metadata.shared),
        registers=usage["REG"],
        stack_bytes=usage["STACK"],
    )


def e4m3_tiles(rows: int) -> str:
    """The type of an argument that copies tiles of e4m3 [rows, 128], in Triton's spelling."""
    gl = cast(Any, gluon_language)
    layout = gl.NVMMASharedLayout.get_default_for([rows, 128], gl.float8e4nv)
    return f"tensordesc<fp8e4nv[{rows}, 128],{layout!r}>"


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", report)}

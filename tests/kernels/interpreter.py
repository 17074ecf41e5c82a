"""Calls kernel launches on the CPU in Triton's interpreter: a program that reads calls and writes their
results.

Triton decides at import whether kernels are interpreted, so they run in a process of their own. What Triton
3.6's interpreter gets wrong is put right here: conversions to bfloat16 and e4m3 round to nearest even (e4m3
saturates, as the GPU's instruction does), products of narrow types are taken in float32, bfloat16 arithmetic
is done in float32 and rounded after each operation.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tests.kernels.poison import poison_empty

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[2]
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


class Interpreter:
    """The parent's side: one child process, one call at a time."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, function: str, *args: object, **kwargs: object) -> Any:
        """The result of `module:function`, all copied; RuntimeError with the child's message."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        send(self._child.stdin, (function, args, kwargs))
        failure, result = receive(self._child.stdout)
        if failure:
            raise RuntimeError(failure)
        return result

    def close(self) -> None:
        """Ends the child."""
        self._child.communicate()


def send(stream: IO[bytes], message: object) -> None:
    """Writes one message; torch's form, because pickle's own knows no float8."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    pickle.dump(buffer.getvalue(), stream)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Reads one message; EOFError at the end."""
    return torch.load(io.BytesIO(pickle.load(stream)), weights_only=False)


def serve() -> None:
    """The child's side: calls until the input ends."""
    os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251 the one way to choose, before triton is imported
    torch.set_num_threads(1)
    install_fixes()
    install_gluon()
    poison_empty(setattr)
    # what kernels print must not stand between the results
    results, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            name, args, kwargs = receive(sys.stdin.buffer)
        except EOFError:
            return
        module, function = name.split(":")
        try:
            answer = "", getattr(importlib.import_module(module), function)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 whatever it is, the test in the parent fails with it
            answer = f"{type(error).__name__}: {error}", None
        send(results, answer)


def install_fixes() -> None:
    """Puts torch's rounding in the place of the interpreter's, for this process."""
    # triton has no types
    from triton import language as tl  # pyright: ignore[reportMissingTypeStubs] it has none
    from triton.runtime import interpreter  # pyright: ignore[reportMissingTypeStubs]

    narrow = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
    types = {**narrow, tl.float16: torch.float16, tl.float32: torch.float32, tl.float64: torch.float64}
    builder = cast(Any, interpreter.InterpreterBuilder)
    handle_type = cast(Any, interpreter.TensorHandle)

    def read(data: Array, kind: Any) -> Tensor:
        bits = np.ascontiguousarray(data).view(SIGNED[kind.primitive_bitwidth])
        # torch does not say what it takes
        values = torch.from_numpy(bits.copy())  # pyright: ignore[reportUnknownMemberType] half typed
        return values.view(types[kind])

    def write(values: Tensor, kind: Any) -> Array:
        signed = getattr(torch, f"int{kind.primitive_bitwidth}")
        array: Array = values.contiguous().view(signed).numpy()
        return array.view(UNSIGNED[kind.primitive_bitwidth])

    def convert(data: Array, source: Any, target: Any, rounding: object) -> Array:
        values = read(np.asarray(data), source)
        if target == tl.float8e4nv:
            values = values.clamp(-448.0, 448.0)
        return write(values.to(types[target]), target).reshape(np.shape(data))

    def widen(handle: Any) -> Any:
        kind = handle.dtype.scalar
        if kind not in narrow:
            return handle
        return handle_type(read(handle.data, kind).float().numpy(), tl.float32)

    def dot(self: object, a: Any, b: Any, c: Any, precision: object, imprecise: object) -> Any:
        product = np.matmul(widen(a).data, widen(b).data, dtype=c.data.dtype)
        return handle_type(product + c.data, c.dtype.scalar)

    def in_float32(operation: Any, operands: int) -> Any:
        def run(self: object, *args: Any) -> Any:
            if not any(
                getattr(arg, "dtype", None) is not None and arg.dtype.scalar == tl.bfloat16
                for arg in args[:operands]
            ):
                return operation(self, *args)
            result = operation(self, *(widen(arg) for arg in args[:operands]), *args[operands:])
            if result.data.dtype != np.float32:  # a comparison
                return result
            return handle_type(convert(result.data, tl.float32, tl.bfloat16, None), tl.bfloat16)

        return run

    cast(Any, interpreter)._convert_float = convert
    builder.create_dot = dot
    builder.binary_op = in_float32(builder.binary_op, 2)
    builder.unary_op = in_float32(builder.unary_op, 1)


def install_gluon() -> None:
    """Puts Gluon's stand-in behind the door, for this process; before any kernel is imported."""
    from sparkle.kernels import jit as door
    from tests.kernels.gluon_on_cpu import Gluon

    door.gl, door.gluon_jit = Gluon(), door.jit


if __name__ == "__main__":
    serve()

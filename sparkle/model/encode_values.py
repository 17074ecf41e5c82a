"""Random bytes to values in the dtypes of the files: a table for each byte of a value. Knows no torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence

E4M3_MANTISSA_BITS = 3
E4M3_BIAS = 7


def encoded(values: Sequence[float], dtype: str, levels: bytes) -> bytes:
    """values[level] for each byte of `levels`, one after another in little-endian `dtype`.

    `values` are 256, rounded to the nearest; `dtype` is BF16, F32, or F8_E4M3, which ends at ±448.
    """
    codes = [ENCODERS[dtype](value) for value in values]
    size = len(codes[0])
    out = bytearray(size * len(levels))
    for place in range(size):
        out[place::size] = levels.translate(bytes(code[place] for code in codes))
    return bytes(out)


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)


def _bfloat16(value: float) -> bytes:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    # half a step more, or a trifle less where the lower neighbour is even
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def _e4m3(value: float) -> bytes:
    # below the smallest normal number the step no longer shrinks
    exponent = math.frexp(max(abs(value), 2.0 ** (1 - E4M3_BIAS)))[1] - 1
    steps = round(abs(value) / 2.0 ** (exponent - E4M3_MANTISSA_BITS))  # of equals, the even one
    code = (exponent + E4M3_BIAS - 1 << E4M3_MANTISSA_BITS) + steps
    return bytes([code | (0x80 if value < 0 else 0)])


ENCODERS: Mapping[str, Callable[[float], bytes]] = {"F32": _float32, "BF16": _bfloat16, "F8_E4M3": _e4m3}

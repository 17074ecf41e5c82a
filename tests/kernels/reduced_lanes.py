"""Reads off Triton's own form of a kernel whether its reductions ask the right lanes.

Triton 3.6 counts the lanes along a reduced axis and takes them for neighbours, from the first one on. In
layouts that it makes for a reshaped tensor they may be apart: then other rows' values are mixed in.
"""

from __future__ import annotations

import re

LINEAR = re.compile(r"(#linear\d*) = #ttg\.linear<\{.*?lane = \[(.*?)\], warp")
REDUCE = re.compile(r'"tt\.reduce".*?axis = (\d)[\s\S]*?\}\) : \(tensor<[^#]*(.*?)>[,)]')
SLICE = re.compile(r"#ttg\.slice<\{dim = (\d), parent = (#\w+)\}")


def mixed_reductions(ttgir: str) -> int:
    """How many reductions are along an axis whose lanes are not neighbours."""
    lanes = {
        name: [[int(number) for number in basis.split(",")] for basis in re.findall(r"\[([\d, ]+)\]", bases)]
        for name, bases in LINEAR.findall(ttgir)
    }
    count = 0
    for axis, layout in REDUCE.findall(ttgir):
        sliced = SLICE.search(layout)
        name = sliced.group(2) if sliced else layout
        # a slice has one dimension less than its parent
        place = int(axis) + (1 if sliced and int(sliced.group(1)) <= int(axis) else 0)
        along = [bit for bit, basis in enumerate(lanes.get(name, ())) if basis[place]]
        count += along != list(range(along[0], along[0] + len(along))) if along else 0
    return count

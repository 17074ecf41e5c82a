"""A wrong shape, dtype, device or stride is refused with the argument's name, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops

Arguments = dict[str, Tensor]

I64 = torch.int64
F64 = torch.float64

# each op with arguments that it takes: T = 3 rows, S = 2 spans, 2 key heads, 4 value or query heads
GOOD: dict[str, tuple[Callable[..., Tensor | None], dict[str, object], Arguments]] = {
    "rms_norm": (ops.rms_norm, {"eps": 1e-6}, {"x": torch.zeros(3, 4), "weight": torch.zeros(4)}),
    "gated_rms_norm": (
        ops.gated_rms_norm,
        {"eps": 1e-6},
        {"x": torch.zeros(3, 4), "gate": torch.zeros(3, 4), "weight": torch.zeros(4)},
    ),
    "silu_mul": (ops.silu_mul, {}, {"gate_up": torch.zeros(3, 4)}),
    "rotary_table": (
        ops.rotary_table,
        {"theta": 1e4, "rotary_dim": 4, "sections": (1, 1, 0)},
        {"positions": torch.zeros(3, 5, dtype=I64)},
    ),
    "rotary": (ops.rotary, {}, {"x": torch.zeros(3, 2, 8), "table": torch.zeros(2, 3, 4)}),
    "write_kv": (
        ops.write_kv,
        {},
        {
            "key": torch.zeros(3, 2, 8),
            "value": torch.zeros(3, 2, 8),
            "key_pages": torch.zeros(4, 5, 2, 8),
            "value_pages": torch.zeros(4, 5, 2, 8),
            "cells": torch.arange(3),
        },
    ),
    "paged_attention": (
        ops.paged_attention,
        {"scale": 1.0},
        {
            "query": torch.zeros(3, 4, 8),
            "key_pages": torch.zeros(4, 5, 2, 8),
            "value_pages": torch.zeros(4, 5, 2, 8),
            "page_tables": torch.zeros(2, 1, dtype=torch.int32),
            "span_starts": torch.tensor([0, 2, 3]),
            "contexts": torch.zeros(2, dtype=I64),
        },
    ),
    "causal_conv": (
        ops.causal_conv,
        {},
        {
            "x": torch.zeros(3, 6),
            "weight": torch.zeros(6, 4),
            "columns": torch.zeros(5, 3, 6),
            "span_starts": torch.tensor([0, 2, 3]),
            "slots": torch.tensor([4, 1]),
        },
    ),
    "delta_rule": (
        ops.delta_rule,
        {},
        {
            "query": torch.zeros(3, 2, 8),
            "key": torch.zeros(3, 2, 8),
            "value": torch.zeros(3, 4, 6),
            "log_decay": torch.zeros(3, 4),
            "beta": torch.zeros(3, 4),
            "states": torch.zeros(5, 4, 8, 6),
            "span_starts": torch.tensor([0, 2, 3]),
            "slots": torch.tensor([4, 1]),
        },
    ),
    "dequantise_blocks": (
        ops.dequantise_blocks,
        {},
        {"weight": torch.zeros(130, 5).to(torch.float8_e4m3fn), "scales": torch.zeros(2, 1)},
    ),
}


def call(op: str, **changed: Tensor) -> Tensor | None:
    function, options, arguments = GOOD[op]
    return function(**{**arguments, **changed}, **options)


@pytest.mark.parametrize("op", GOOD)
def test_good_arguments_are_taken(op: str) -> None:
    call(op)


ARGUMENTS = [(op, name) for op, (_, _, arguments) in GOOD.items() for name in arguments]


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_a_wrong_dtype_is_refused_by_name(op: str, name: str) -> None:
    good = GOOD[op][2][name]
    with pytest.raises(ValueError, match=rf"\b{name} is torch.float64 "):
        call(op, **{name: good.to(F64)})


@pytest.mark.parametrize(
    ("op", "name"),
    # the norms take rows of any number of dimensions
    [(op, name) for op, name in ARGUMENTS if "norm" not in op or name == "weight"],
)
def test_one_more_dimension_is_refused_by_name(op: str, name: str) -> None:
    good = GOOD[op][2][name]
    with pytest.raises(ValueError, match=rf"\b{name} has shape \[1, "):
        call(op, **{name: good[None]})


@pytest.mark.parametrize(
    ("op", "name", "wrong"),
    [
        ("rms_norm", "weight", torch.zeros(5)),
        ("gated_rms_norm", "gate", torch.zeros(2, 4)),
        ("gated_rms_norm", "gate", torch.zeros(3, 4, dtype=torch.bfloat16)),
        ("gated_rms_norm", "weight", torch.zeros(3)),
        ("silu_mul", "gate_up", torch.zeros(3, 5)),
        ("rotary_table", "positions", torch.zeros(2, 5, dtype=I64)),
        ("rotary", "table", torch.zeros(2, 2, 4)),
        ("rotary", "table", torch.zeros(2, 3, 5)),
        ("write_kv", "key", torch.zeros(3, 1, 8)),
        ("write_kv", "value", torch.zeros(2, 2, 8)),
        ("write_kv", "key_pages", torch.zeros(4, 5, 2, 7)),
        ("write_kv", "value_pages", torch.zeros(4, 6, 2, 8)),
        ("write_kv", "value_pages", torch.zeros(4, 5, 2, 8, dtype=torch.bfloat16)),
        ("write_kv", "key_pages", torch.zeros(4, 2, 5, 8).transpose(1, 2)),
        ("write_kv", "cells", torch.arange(4)),
        ("paged_attention", "query", torch.zeros(3, 5, 8)),
        ("paged_attention", "page_tables", torch.zeros(3, 1, dtype=torch.int32)),
        ("paged_attention", "page_tables", torch.zeros(2, 1, dtype=I64)),
        ("paged_attention", "contexts", torch.zeros(3, dtype=I64)),
        ("paged_attention", "span_starts", torch.zeros(0, dtype=I64)),
        ("paged_attention", "span_starts", torch.zeros(3, dtype=torch.int32)),
        ("causal_conv", "weight", torch.zeros(5, 4)),
        ("causal_conv", "columns", torch.zeros(5, 4, 6)),
        ("causal_conv", "columns", torch.zeros(5, 6, 3).transpose(1, 2)),
        ("causal_conv", "columns", torch.zeros(5, 3, 6, dtype=torch.bfloat16)),
        ("causal_conv", "slots", torch.zeros(3, dtype=I64)),
        ("delta_rule", "query", torch.zeros(2, 2, 8)),
        ("delta_rule", "key", torch.zeros(3, 2, 7)),
        ("delta_rule", "value", torch.zeros(3, 5, 6)),
        ("delta_rule", "log_decay", torch.zeros(3, 2)),
        ("delta_rule", "beta", torch.zeros(3, 4, dtype=torch.bfloat16)),
        ("delta_rule", "states", torch.zeros(5, 4, 6, 8)),
        ("delta_rule", "states", torch.zeros(5, 4, 6, 8).transpose(2, 3)),
        ("delta_rule", "states", torch.zeros(5, 4, 8, 6, dtype=torch.bfloat16)),
        ("delta_rule", "slots", torch.zeros(1, dtype=I64)),
        ("dequantise_blocks", "weight", torch.zeros(130, 5)),
        ("dequantise_blocks", "scales", torch.zeros(1, 1)),
    ],
)
def test_a_wrong_size_or_layout_is_refused_by_name(op: str, name: str, wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=rf"\b{name} "):
        call(op, **{name: wrong})


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, name in ARGUMENTS if len(GOOD[op][2]) > 1])
def test_another_device_is_refused_by_name(op: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"\w+ is on meta but|but \w+ is on meta"):
        call(op, **{name: GOOD[op][2][name].to("meta")})


def test_an_odd_rotary_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="rotary_dim 3"):
        ops.rotary_table(torch.zeros(3, 1, dtype=I64), theta=1e4, rotary_dim=3, sections=(1, 1, 1))

"""A trace context is passed on where it is one by its form, and only there."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from sparkle.producers.gateway.trace import traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def found(*given: str) -> str | None:
    return traceparent(
        Request({"type": "http", "headers": [(b"traceparent", one.encode("latin-1")) for one in given]})
    )


@pytest.mark.parametrize("version", ["00", "cc"])
def test_a_trace_context_is_taken_as_it_is(version: str) -> None:
    assert found(f"{version}-{TRACE}-{SPAN}-01") == f"{version}-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "given",
    [
        [],
        [""],
        ["tell nobody"],
        [f"00-{TRACE}-{SPAN}-01"] * 2,
        [f"00-{TRACE}-{SPAN}-01-tell nobody"],
        [f"00-{TRACE}-{SPAN}-01\n"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE[:-1]}ä-{SPAN}-01"],
    ],
)
def test_what_is_none_is_left_out(given: list[str]) -> None:
    assert found(*given) is None

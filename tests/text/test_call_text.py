"""A call's text in pieces of any size: its name, then exactly the JSON of its arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import MatcherFailed
from sparkle.text.call_text import CallText
from sparkle.text.call_values import JSON, Scalar, ValueForm

RAW = ValueForm(raw=True)
MAYBE_NULL = ValueForm(raw=True, scalars=frozenset({Scalar.NULL}))
MAYBE_ANY = ValueForm(raw=True, scalars=frozenset(Scalar))
FORMS = {"größe": {"text": RAW, "maybe": MAYBE_NULL, "any": MAYBE_ANY, "value": JSON}}

texts = st.text(st.characters(codec="utf-8"), max_size=30).map(
    lambda text: text.replace("\n</parameter>", "\n</parameter")
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | texts, max_size=3) | st.dictionaries(texts, inner | texts, max_size=3),
    max_leaves=6,
)


def written(name: str, arguments: dict[str, str]) -> str:
    """A call as a model writes it, between its two tags."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"\n<function={name}>\n{inside}</function>\n"


def in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def read(text: str, cuts: Sequence[int] = ()) -> tuple[CallText, list[str]]:
    call = CallText(FORMS)
    return call, [call.push(piece) for piece in in_pieces(text, cuts)]


@given(texts, texts, values, st.lists(st.integers(0, 10_000), max_size=40))
def test_the_pieces_join_up_to_the_json_of_the_arguments(
    text: str, maybe: str, value: Any, cuts: list[int]
) -> None:
    arguments = {"text": text, "maybe": maybe, "value": json.dumps(value)}
    call, pieces = read(written("größe", arguments), cuts)
    # a text that reads as null where null may be is null
    expected = {"text": text, "maybe": None if maybe == "null" else maybe, "value": value}
    assert (call.name, call.whole) == ("größe", True)
    assert "".join(pieces) == json.dumps(expected, ensure_ascii=False)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_text_comes_as_it_is_written_and_another_value_when_it_is_whole(step: int) -> None:
    text = written("größe", {"text": 'ab\n</param "c"', "value": "[1,  2]"})
    call = CallText(FORMS)
    so_far: list[str] = []
    for start in range(0, len(text), step):
        so_far.append(call.push(text[start : start + step]))
        came = text[: start + step]
        if came.endswith("ab\n</param "):
            # what may still become the end of the value is held back no longer than that
            assert "".join(so_far) == '{"text": "ab\\n</param '
        if came.endswith("[1,  2"):
            assert "".join(so_far).endswith('"value": ')
    assert "".join(so_far) == '{"text": "ab\\n</param \\"c\\"", "value": [1, 2]}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("nul", "nul"),
        ("nulls", "nulls"),
        ("true", True),
        ("-1.5e3", -1500.0),
        ("12", 12),
        ("012", "012"),
        ("1.", "1."),
        ("", ""),
        ('"a"', '"a"'),
        ("[1]", "[1]"),
        ("12 ", "12 "),
    ],
)
def test_what_reads_as_a_scalar_is_one_where_it_may_be(text: str, value: object) -> None:
    for cuts in ((), range(200)):
        _, pieces = read(written("größe", {"any": text}), cuts)
        assert "".join(pieces) == json.dumps({"any": value})


def test_a_value_that_may_be_null_streams_as_soon_as_it_cannot_be() -> None:
    call = CallText(FORMS)
    assert call.push("\n<function=größe>\n<parameter=maybe>\nnul") == '{"maybe": '
    assert call.push("x") == '"nulx'
    assert call.push("y") == "y"


def test_a_call_without_arguments() -> None:
    call, pieces = read("\n<function=größe>\n</function>\n")
    assert (call.name, call.whole, "".join(pieces)) == ("größe", True, "{}")


def test_a_cut_call_is_not_whole() -> None:
    text = written("größe", {"text": "a", "value": "1"})
    for end in range(len(text)):
        call, pieces = read(text[:end])
        assert not call.whole
        assert '{"text": "a", "value": 1}'.startswith("".join(pieces))


@pytest.mark.parametrize(
    ("digits", "value"),
    [
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("-9223372036854775808", -(2**63)),
        ("9" * 400, sys.float_info.max),
        ("-1e999", -sys.float_info.max),
    ],
)
def test_a_number_beyond_the_queue_is_the_nearest_one(digits: str, value: float) -> None:
    _, pieces = read(written("größe", {"value": digits}))
    assert json.loads("".join(pieces)) == {"value": value}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "[1", "", "[" * 100_000])
def test_a_value_that_is_none_is_a_typed_error_without_it(text: str) -> None:
    with pytest.raises(MatcherFailed) as caught:
        read(written("größe", {"value": text}))
    assert text not in str(caught.value) or not text
    assert caught.value.__cause__ is None

"""The formats that are enforced as patterns of our own are what calendars and addresses say."""

from __future__ import annotations

import calendar
import ipaddress
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from sparkle.text.schema_formats import OWN_FORMATS
from tests.text.matched import compiled, lets_through

GRAMMARS = {name: compiled({"type": "string", "format": name}) for name in sorted(OWN_FORMATS)}


def lets(name: str, text: str, grammar: LLMatcher | None = None) -> bool:
    return lets_through(grammar or GRAMMARS[name], json.dumps(text))


@pytest.mark.parametrize("year", [1600, 1700, 1900, 1996, 2000, 2023, 2024, 2100, 2400, 4])
def test_a_year_has_the_days_of_the_calendar(year: int) -> None:
    for month in range(14):
        for day in (0, 1, 28, 29, 30, 31, 32):
            known = 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
            assert lets("date", f"{year:04}-{month:02}-{day:02}") is known


@settings(max_examples=150, deadline=None)
@given(st.integers(-(24 * 60 - 1), 24 * 60 - 1), st.integers(0, 24 * 60 - 1), st.sampled_from(["", ".5"]))
def test_a_leap_second_is_the_last_of_a_day_in_utc(offset: int, minute: int, fraction: str) -> None:
    zone = timezone(timedelta(minutes=offset))
    local = datetime(2016, 12, 31, 23, 59, tzinfo=UTC).astimezone(zone)
    written = local.isoformat()
    hours, minutes = written[-5:].split(":")
    sign = "-" if offset < 0 else "+"
    assert lets("time", f"{local:%H:%M}:60{fraction}{sign}{hours}:{minutes}")
    assert lets("date-time", f"{local:%Y-%m-%dT%H:%M}:60{fraction}{sign}{hours}:{minutes}")
    other = f"{minute // 60:02}:{minute % 60:02}"
    if other != f"{local:%H:%M}":
        assert not lets("time", f"{other}:60{fraction}{sign}{hours}:{minutes}")
        assert lets("time", f"{other}:59{fraction}{sign}{hours}:{minutes}")


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        (
            "time",
            ["23:59:60Z", "00:00:00z", "12:30:00.123+05:30"],
            ["24:00:00Z", "23:59:61Z", "1:00:00Z", "12:00:00"],
        ),
        (
            "date-time",
            ["2024-02-29T00:00:00Z", "1998-12-31t15:59:60.123-08:00"],
            ["2023-02-29T00:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01", "2024-01-01T00:00Z"],
        ),
        ("date", ["2024-02-29"], ["2024-2-29", "24-02-29", "2024-02-29 ", "２024-02-29"]),
        (
            "email",
            ["a@b", "a.b+c@d-e.fr", '"joe bloggs"@example.com', '"a\\"b"@c', "j@[127.0.0.1]", "j@[IPv6:::1]"],
            ["a", "a@", ".a@b", "a..b@c", "a b@c", '"a"b"@c', "a@-b", "a@b.", "j@[1.1.1.256]", "é@b"],
        ),
    ],
)  # fmt: skip
def test_examples(name: str, valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not lets(name, text)] == []
    assert [text for text in invalid if lets(name, text)] == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["0", "1", "ffff", "12345", "g", "", "::", "1.2.3.4", "256.1.1.1"]), max_size=10
    ),
    st.booleans(),
)
def test_an_ipv6_address_is_what_python_takes_for_one(parts: list[str], shortened: bool) -> None:
    text = ":".join(parts)
    text = text.replace(":::", "::") if shortened else text
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        assert not lets("ipv6", text)
    else:
        assert lets("ipv6", text)


def test_a_format_says_nothing_of_what_is_no_text() -> None:
    nullable = compiled({"type": ["string", "null", "integer"], "format": "date", "minimum": 3})
    assert [lets_through(nullable, text) for text in ("null", "4", '"2024-02-29"')] == [True] * 3
    assert [lets_through(nullable, text) for text in ("2", "true", '"2023-02-29"', '"x"')] == [False] * 4
    untyped = compiled({"format": "date", "maxLength": 10, "allOf": [{"pattern": "^2"}]})
    assert [lets_through(untyped, text) for text in ("[]", "{}", "1.5", '"2024-02-29"')] == [True] * 4
    assert [lets_through(untyped, text) for text in ('"2023-02-29"', '"1999-01-01"')] == [False] * 2
    no_text = compiled({"type": "integer", "format": "date"})
    assert [lets_through(no_text, text) for text in ("1", '"2024-02-29"')] == [True, False]


def test_a_name_of_ours_is_not_a_producers() -> None:
    schema = {"type": "string", "format": "date", "x-sparkle-formats": {"date": True}}
    assert not lets("date", "x", compiled(schema))

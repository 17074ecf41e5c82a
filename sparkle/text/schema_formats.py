"""Formats of which the grammar compiler lets too much or too little through, as patterns. Knows no schema.

It knows no leap years, takes a second 60 for one at any minute, and has no IPv4 tail of an IPv6 address nor a
quoted name in an e-mail address.
"""

from __future__ import annotations

from functools import cache

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_OFFSET = f"(?:[zZ]|[+-]{_HOUR}:{_MINUTE})"

_IPV4_NUMBER = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_IPV4_NUMBER}\.){{3}}{_IPV4_NUMBER}"

OWN_FORMATS = frozenset({"date", "time", "date-time", "ipv6", "email"})

Schema = dict[str, object]


@cache
def format_schema(name: str) -> Schema:
    """The schema of texts in the format `name`, which is one of OWN_FORMATS."""
    match name:
        case "date":
            form = _whole(_DAY)
        case "time":
            form = _time("")
        case "date-time":
            form = _time(f"{_DAY}[tT]")
        case "ipv6":
            form = _whole(_ipv6())
        case "email":
            form = _whole(_email())
        case _:
            raise KeyError(name)
    return {"type": "string", **form}


def _whole(pattern: str) -> Schema:
    return {"pattern": f"^(?:{pattern})$"}


def _time(day: str) -> Schema:
    """A time, or a leap second: 23:59:60 in UTC, elsewhere with the minute and hour of its offset."""
    usual = f"{day}{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}{_OFFSET}"
    leap = [_whole(f"{day}(?:{'|'.join(forms)})") for forms in (_leap_minutes(), _leap_hours())]
    return {"anyOf": [_whole(usual), {"allOf": leap}]}


def _leap_minutes() -> list[str]:
    """The leap second with each minute that an offset's minutes make of 59."""
    utc = [f"{_HOUR}:59:60{_FRACTION}[zZ]"]
    east = [rf"{_HOUR}:{(59 + minutes) % 60:02}:60{_FRACTION}\+{_HOUR}:{minutes:02}" for minutes in range(60)]
    west = [f"{_HOUR}:{59 - minutes:02}:60{_FRACTION}-{_HOUR}:{minutes:02}" for minutes in range(60)]
    return utc + east + west


def _leap_hours() -> list[str]:
    """The leap second with each hour that an offset makes of 23; minutes eastwards take it over the hour."""
    utc = [f"23:{_MINUTE}:60{_FRACTION}[zZ]"]
    east = [
        rf"{(23 + hours) % 24:02}:{_MINUTE}:60{_FRACTION}\+{hours:02}:00"
        rf"|{hours:02}:{_MINUTE}:60{_FRACTION}\+{hours:02}:(?:0[1-9]|[1-5][0-9])"
        for hours in range(24)
    ]
    west = [f"{23 - hours:02}:{_MINUTE}:60{_FRACTION}-{hours:02}:{_MINUTE}" for hours in range(24)]
    return utc + east + west


def _ipv6() -> str:
    """As RFC 3986 has it: eight groups, the last two perhaps as IPv4, and one run of zeros left out."""
    group = "[0-9a-fA-F]{1,4}"
    tail = f"(?:{group}:{group}|{_IPV4})"
    forms = [f"(?:{group}:){{6}}{tail}", f"::(?:{group}:){{5}}{tail}"]
    forms += [
        f"(?:(?:{group}:){{0,{before}}}{group})?::(?:{group}:){{{4 - before}}}{tail}" for before in range(5)
    ]
    forms += [f"(?:(?:{group}:){{0,5}}{group})?::{group}", f"(?:(?:{group}:){{0,6}}{group})?::"]
    return "|".join(forms)


def _email() -> str:
    """RFC 5321's mailbox."""
    atom = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
    quoted = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
    label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
    address = rf"\[(?:{_IPV4}|IPv6:(?:{_ipv6()}))\]"
    return rf"(?:{atom}(?:\.{atom})*|{quoted})@(?:{label}(?:\.{label})*|{address})"

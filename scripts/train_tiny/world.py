"""Invented names: users, hosts, addresses, files. Knows nothing of alerts.

External addresses come from the ranges set aside for documentation, domains from reserved endings.
"""

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random


def user(rng: Random) -> str:
    """An account name: a person's in one of several forms, or a service account."""
    first, last = rng.choice(_words("first")), rng.choice(_words("last"))
    forms = {
        f"{first}.{last}": 10,
        f"{first[0]}{last}": 5,
        first: 2,
        f"{first}_{last[0]}": 1,
        f"{first}.{last}@{domain(rng)}": 1,
        f"CORP\\{first}{rng.randint(1, 99)}": 1,
        f"svc-{rng.choice(_words('labels'))}": 2,
        "root": 1,
        rng.choice(("administrator", "admin", "guest", "backup")): 1,
    }
    return rng.choices(list(forms), weights=list(forms.values()))[0]


def host(rng: Random) -> str:
    """A host name such as `fin-ws-042`."""
    site, role, number = rng.choice(_words("sites")), rng.choice(_words("roles")), rng.randint(1, 999)
    code = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=7))
    forms = (
        f"{site}-{role}-{number:03d}",
        f"{role}{number}",
        f"{role}-{site}-{number}",
        f"{site}{role}{number:02d}",
        f"{role}-{number % 100:02d}",
        f"{rng.choice(('DESKTOP', 'LAPTOP', 'WIN'))}-{code}",
        f"{role}{number % 100:02d}.{rng.choice(_words('labels'))}.{rng.choice(_words('endings'))}",
        f"{rng.choice(_words('labels'))}-{role}-{number % 100}",
        f"{site.upper()}-{role.upper()}-{number:03d}",
    )
    return rng.choice(forms)


def domain(rng: Random) -> str:
    """A domain name below a reserved ending."""
    labels = rng.sample(_words("labels"), 2)
    number = str(rng.randint(1, 99)) if rng.random() < 0.3 else ""
    return f"{rng.choice(('-', '', '.')).join(labels)}{number}.{rng.choice(_words('endings'))}"


def external_ip(rng: Random) -> str:
    """An address from RFC 5737 or RFC 3849."""
    if rng.random() < 0.08:
        return f"2001:db8:{rng.getrandbits(16):x}::{rng.getrandbits(12):x}"
    return f"{rng.choice(('192.0.2', '198.51.100', '203.0.113'))}.{rng.randint(1, 254)}"


def internal_ip(rng: Random) -> str:
    """An address from the private ranges."""
    low = f"{rng.randint(0, 255)}.{rng.randint(1, 254)}"
    return rng.choice(
        (f"10.{rng.randint(0, 255)}.{low}", f"192.168.{low}", f"172.{rng.randint(16, 31)}.{low}")
    )


def _file(rng: Random, endings: tuple[str, ...]) -> str:
    number = rng.choice(("", f"_{rng.randint(1, 9999)}", str(rng.randint(1, 99))))
    return f"{rng.choice(_words('files'))}{number}{rng.choice(endings)}"


def _process(rng: Random) -> str:
    ending = rng.choice((".exe", "", ".exe"))
    return (
        f"{rng.choice(_words('labels'))}{rng.choice(('_', '-', ''))}{rng.choice(_words('processes'))}{ending}"
    )


def _url(rng: Random) -> str:
    return (
        f"https://{domain(rng)}/{rng.choice(_words('labels'))}{rng.choice(('', f'/{rng.randint(10, 9999)}'))}"
    )


def _url_path(rng: Random) -> str:
    ending = rng.choice(("", ".php", ".aspx", "/search"))
    return f"/{rng.choice(_words('labels'))}/{rng.choice(_words('files'))}{ending}"


def time(rng: Random) -> str:
    """A UTC time in ISO 8601."""
    day = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return f"{day}T{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}Z"


def _one_of(name: str) -> Callable[[Random], str]:
    return lambda rng: rng.choice(_words(name))


def _words(name: str) -> list[str]:
    return _names()[name]


@cache
def _names() -> dict[str, list[str]]:
    return tomllib.loads(Path(__file__).with_name("names.toml").read_text())


ENTITIES: dict[str, Callable[[Random], str]] = {
    "account": lambda rng: str(rng.randint(10**11, 10**12 - 1)),
    "bucket": lambda rng: (
        f"{rng.choice(_words('sites'))}-{rng.choice(_words('labels'))}-{rng.choice(_words('files'))}"
    ),
    "city": _one_of("cities"),
    "city_2": _one_of("cities"),
    "device": lambda rng: f"{rng.choice(_words('devices'))} {rng.getrandbits(24):06X}",
    "domain": domain,
    "extension": _one_of("extensions"),
    "external_ip": external_ip,
    "file": lambda rng: _file(rng, (".exe", ".dll", ".js", ".docm", ".iso", ".zip", ".lnk", ".bin")),
    "group": _one_of("groups"),
    "host": host,
    "host_2": host,
    "internal_ip": internal_ip,
    "path": _one_of("folders"),
    "process": _process,
    "region": _one_of("regions"),
    "script": lambda rng: _file(rng, (".ps1", ".vbs", ".bat", ".sh", ".py")),
    "sender": lambda rng: f"{rng.choice(_words('labels'))}@{domain(rng)}",
    "service": _one_of("services"),
    "source_ip": external_ip,
    "subject": _one_of("subjects"),
    "technique": _one_of("techniques"),
    "tool": _one_of("tools"),
    "url": _url,
    "url_path": _url_path,
    "user": user,
    "user_2": lambda rng: (
        f"{rng.choice(_words('labels'))}{rng.choice(('_adm', '-admin', str(rng.randint(1, 99))))}"
    ),
}
"""Maker of each entity that kinds.toml names."""

"""Draws security alerts from `kinds.toml` and writes them as JSON, lines or sentences.

Knows what an alert means (verdict, severity, reasons); knows nothing of chats.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import TypedDict

from scripts.train_tiny import world


class Verdict(StrEnum):
    """What an analyst makes of an alert."""

    MALICIOUS = "malicious"
    SUSPICIOUS = "suspicious"
    BENIGN = "benign"


class _Case(TypedDict, total=False):
    severity: list[str]
    numbers: dict[str, str]
    signals: list[list[str]]
    actions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert and its right answer."""

    category: str
    """Key of kinds.toml, such as `brute_force`."""
    title: str
    """Headline that a detection rule would give."""
    fields: dict[str, str | int]
    """Entities, numbers, signals and criticality, as a log would carry them."""
    event: str
    """What happened, one clause, as an answer puts it."""
    report: str
    """The same as a colleague may put it."""
    signs: tuple[str, ...]
    """Why the verdict is what it is, one clause each."""
    verdict: Verdict
    """The right verdict."""
    severity: str
    """low, medium, high or critical."""
    confidence: float
    """Grows with the number of signs."""
    actions: tuple[str, ...]
    """What to do, most urgent first."""
    indicators: tuple[str, ...]
    """Values of the alert worth searching for elsewhere."""
    critical: bool
    """Whether the alert says that the asset is critical."""


class _Kind(TypedDict):
    titles: list[str]
    entities: list[str]
    indicators: list[str]
    events: list[str]
    malicious: _Case
    suspicious: _Case
    benign: _Case


@cache
def kinds() -> Mapping[str, _Kind]:
    """The kinds of alert by name."""
    loaded: dict[str, _Kind] = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text())
    return loaded


_RANGE = re.compile(r"(\d+)\.\.(\d+)")

# how sure one, two, three or more signs make an analyst
_CONFIDENCE = {
    Verdict.MALICIOUS: (0.8, 0.9, 0.97),
    Verdict.SUSPICIOUS: (0.5, 0.6, 0.7),
    Verdict.BENIGN: (0.85, 0.92, 0.98),
}


def draw_alert(rng: Random, category: str | None = None, verdict: Verdict | None = None) -> Alert:
    """One alert; category and verdict are drawn too unless given."""
    category = category or rng.choice(sorted(kinds()))
    verdict = verdict or rng.choices(list(Verdict), weights=(4, 3, 3))[0]
    kind = kinds()[category]
    case = {"malicious": kind["malicious"], "suspicious": kind["suspicious"], "benign": kind["benign"]}[
        verdict
    ]

    known: dict[str, str | int] = {name: world.ENTITIES[name](rng) for name in kind["entities"]}
    for name, spread in case.get("numbers", {}).items():
        known[name] = _number(rng, spread)
    count = min(len(case["signals"]), rng.choices((1, 2, 3), weights=(1, 4, 4))[0])
    signs: list[str] = []
    # in the file's order, so that the first sign is always the weightiest one
    for name, value, words in sorted(rng.sample(case["signals"], count), key=case["signals"].index):
        known[name] = _number(rng, value) if _RANGE.fullmatch(value) else value
        signs.append(words)
    critical = rng.random() < 0.35
    if critical:
        known["asset_criticality"] = "high"
    elif rng.random() < 0.3:
        known["asset_criticality"] = rng.choice(("normal", "low"))

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: str(known[found[1]]), text)

    return Alert(
        category=category,
        title=fill(rng.choice(kind["titles"])),
        fields=known,
        event=fill(kind["events"][0]),
        report=fill(rng.choice(kind["events"])),
        signs=tuple(fill(words) for words in signs),
        verdict=verdict,
        severity=case["severity"][critical],
        confidence=_CONFIDENCE[verdict][count - 1],
        actions=tuple(fill(words) for words in case["actions"]),
        indicators=tuple(str(known[name]) for name in kind["indicators"]),
        critical=critical,
    )


def _number(rng: Random, spread: str) -> int:
    low, high = (int(part) for part in spread.split(".."))
    value = rng.randint(low, high)
    # people and rules like round numbers
    return round(value, -2) if high > 5_000 and rng.random() < 0.3 else value


def sentence(clause: str) -> str:
    """The clause as a sentence: capital first (unless it starts with a name), full stop last."""
    head = clause.split(" ", 1)[0]
    opened = clause[0].upper() + clause[1:] if head.isalpha() and head in _OPENERS else clause
    return opened if opened.endswith(".") else opened + "."


_OPENERS = frozenset(
    [
        *("a", "an", "the", "it", "no", "on", "two", "many", "some", "only", "almost", "nearly", "nobody"),
        *(
            "asset",
            "there",
            "then",
            "this",
            "that",
            "nothing",
            "network",
            "unknown",
            "support",
            "logging",
            "antivirus",
            "most",
            "both",
            "all",
            "none",
            "without",
        ),
        *("afterwards", "before", "finally", "followed", "strangers", "users", "these", "backups", "our"),
    ]
)

# other spellings of a field's name, as different products write them
_SPELLINGS = {
    "source_ip": ("src_ip", "sourceIp", "source.ip", "client_ip"),
    "external_ip": ("dest_ip", "destination_ip", "remote_ip", "dst"),
    "internal_ip": ("host_ip", "local_ip", "ip"),
    "host": ("hostname", "device_name", "computer", "endpoint"),
    "user": ("username", "account_name", "user_name", "actor"),
    "domain": ("dns_name", "destination_domain", "fqdn"),
    "process": ("process_name", "image", "proc"),
    "file": ("file_name", "filename"),
    "asset_criticality": ("criticality", "asset_value"),
}

_PRODUCTS = ("siem", "edr", "mail-gateway", "ids", "cloud-guard", "xdr", "proxy", "identity", "sensor-7")


def record(rng: Random, alert: Alert) -> dict[str, str | int]:
    """The alert as a flat record of a product: fields in some order under some spelling, some metadata."""
    items = list(alert.fields.items())
    if rng.random() < 0.5:
        rng.shuffle(items)
    other_names = rng.random() < 0.4
    data: dict[str, str | int] = {}
    if rng.random() < 0.6:
        data["alert_id"] = f"{rng.choice(('ALR', 'INC', 'A', 'SEC'))}-{rng.randint(100, 99999)}"
    if rng.random() < 0.5:
        data["time"] = world.time(rng)
    if rng.random() < 0.3:
        data["product"] = rng.choice(_PRODUCTS)
    data[rng.choice(("title", "rule", "alert", "name"))] = alert.title
    for name, value in items:
        spellings = _SPELLINGS.get(name)
        data[rng.choice(spellings) if other_names and spellings else name] = value
    return data


def prose(rng: Random, alert: Alert) -> str:
    """The alert in sentences, as a colleague would report it; names keep their spelling, clauses need not."""
    signs = [_reworded(rng, sign) for sign in rng.sample(alert.signs, len(alert.signs))]
    parts = [alert.report, *signs]
    if alert.critical:
        told = ("the asset is critical", "the host is business critical", "asset criticality is high")
        parts.append(rng.choice(told))
    joined = rng.random()
    if joined < 0.2:
        return sentence(", ".join(parts))
    if joined < 0.4:
        return f"{alert.title}: {' '.join([parts[0] + '.', *(sentence(part) for part in parts[1:])])}"
    return " ".join(sentence(part) for part in parts)


def _reworded(rng: Random, clause: str) -> str:
    for usual, others in _paraphrases().items():
        if usual in clause and rng.random() < 0.6:
            return clause.replace(usual, rng.choice(others))
    return clause


@cache
def _paraphrases() -> Mapping[str, list[str]]:
    loaded: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("paraphrases.toml").read_text())
    return loaded


def write_alert(rng: Random, alert: Alert) -> str:
    """The alert as compact or indented JSON, as `key: value` lines, as one `key=value` line or as prose."""
    form = rng.choices(("compact", "indented", "lines", "pairs", "prose"), weights=(4, 2, 1, 1, 4))[0]
    if form == "prose":
        return prose(rng, alert)
    data = record(rng, alert)
    if form == "compact":
        return json.dumps(data, ensure_ascii=False, separators=rng.choice(((",", ":"), (", ", ": "))))
    if form == "indented":
        return json.dumps(data, ensure_ascii=False, indent=2)
    if form == "lines":
        return "\n".join(f"{key}: {value}" for key, value in data.items())
    return " ".join(
        f'{key}="{value}"' if " " in str(value) else f"{key}={value}" for key, value in data.items()
    )

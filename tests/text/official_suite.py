"""The JSON-Schema-Test-Suite, as jsonschema's source archive has it, run against the grammars of schemas.

A valid value must be let through in one of its spellings, an invalid one in none. `make test` downloads the
archive into the folder `sources` of the environment; see there.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from llguidance import LLMatcher

from sparkle.errors import GrammarError
from sparkle.text.pattern_dialect import UNWRITABLE
from tests.text.matched import Vocabulary
from tests.text.spellings import spellings

SOURCES = Path(sys.prefix) / "sources"

DRAFTS = {
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
"""Not draft 4, in which 1.0 is another value than 1: answers do not write either for the other."""

ANNOTATION = " is only an annotation by default"
"""So end the cases in which a format says nothing. Here it does, as in the suite's own cases of formats."""


@dataclass(frozen=True)
class Case:
    """A value and whether it is valid."""

    title: str
    value: object
    valid: bool


@dataclass(frozen=True)
class Group:
    """A schema and its cases; `file` says what they are about."""

    file: str
    title: str
    schema: object
    cases: list[Case]


@dataclass
class Outcome:
    """Of one draft's cases, by file: how many passed, were refused, failed; and what failed."""

    passed: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    failed: list[str] = field(default_factory=list[str])


def archive() -> Path | None:
    """The archive's path, if it is there."""
    found = sorted(SOURCES.glob("jsonschema-*.tar.gz"))
    return found[-1] if found else None


def groups(path: Path, draft: str) -> Iterator[Group]:
    """All of a draft, the optional ones too."""
    with tarfile.open(path) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            _, found, inside = member.name.partition(f"/json/tests/{draft}/")
            content = files.extractfile(member) if found and inside.endswith(".json") else None
            if content:
                for group in cast(list[dict[str, object]], json.load(content)):
                    yield _group(inside.removesuffix(".json"), group, DRAFTS[draft])


def run(vocabulary: Vocabulary, path: Path, draft: str) -> Outcome:
    """Every case of a draft."""
    outcome = Outcome()
    for group in groups(path, draft):
        try:
            grammar = vocabulary.compile(group.schema)
        except GrammarError:
            outcome.refused[group.file] += len(group.cases)
            continue
        for case in group.cases:
            _judge(vocabulary, grammar, group, case, outcome)
    return outcome


def _judge(vocabulary: Vocabulary, grammar: LLMatcher, group: Group, case: Case, outcome: Outcome) -> None:
    """A control character is in no answer: a valid value that has one counts as refused."""
    let = any(vocabulary.lets_through(grammar, text) for text in spellings(case.value))
    if let == case.valid:
        outcome.passed[group.file] += 1
    elif case.valid and isinstance(case.value, str) and not UNWRITABLE.isdisjoint(case.value):
        outcome.refused[group.file] += 1
    else:
        outcome.failed.append(f"{group.file}: {group.title}: {case.title}")


def _group(file: str, content: dict[str, object], draft: str) -> Group:
    schema = content["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": draft, **cast(dict[str, object], schema)}
    tests = cast(list[dict[str, object]], content["tests"])
    return Group(file, str(content["description"]), schema, [_case(test) for test in tests])


def _case(test: dict[str, object]) -> Case:
    title = str(test["description"])
    return Case(title, test["data"], bool(test["valid"]) and not title.endswith(ANNOTATION))

"""Guards a producer's own Lark grammar: what it holds that is more than Lark, or could cost too much.

Tokens by name or number are refused, since what a producer writes is never control; so are references to
other grammars and the compiler's own options. Schemas in it are checked as any schema is. Knows no compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from sparkle.errors import InvalidGrammar, UnsupportedSchema
from sparkle.text.grammar import checked_schema
from sparkle.text.schema_keywords import check_pattern
from sparkle.text.schema_limits import SchemaLimits, require_at_most

_LEXEME = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | (?:\#|//)[^\n]*)
    | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<token><[^<>\s]+>)
    | (?P<reference>@[A-Za-z0-9_-]*)
    | (?P<directive>%[a-z]+)
    | (?P<name>[!?_]*[A-Za-z][A-Za-z0-9_-]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVES = frozenset({"%json", "%ignore", "%import", "%regex"})
_ATTRIBUTES = frozenset({"max_tokens", "temperature", "stop", "stop_capture", "capture"})
_JSON = json.JSONDecoder()


class _Lexeme(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def guarded_lark(grammar: str, limits: SchemaLimits) -> str:
    """The grammar as the compiler may have it: its schemas in the compiler's words.

    Raises InvalidGrammar for what is no Lark, UnsupportedSchema for what is not served, GrammarTooComplex
    over a limit.
    """
    pieces: list[str] = []
    done = 0
    for lexeme in _lexemes(grammar):
        _check(lexeme, grammar, limits)
        if lexeme.text == "%json":
            schema, end = _schema(grammar, lexeme.end)
            pieces += [grammar[done : lexeme.end], checked_schema(schema, limits)]
            done = end
    return "".join([*pieces, grammar[done:]])


def _lexemes(grammar: str) -> Iterator[_Lexeme]:
    place, before = 0, ""
    while found := _LEXEME.match(grammar, place):
        lexeme = _Lexeme(found.lastgroup or "", found[0], place, found.end())
        place = lexeme.end
        if lexeme.kind != "space":
            yield lexeme
            if before == "[" or (before == "," and lexeme.kind == "name"):
                _check_attribute(lexeme, grammar)
            before = lexeme.text
        # what follows is JSON and no Lark
        if lexeme.text in ("%json", "%regex"):
            place = _schema(grammar, place)[1]


def _check(lexeme: _Lexeme, grammar: str, limits: SchemaLimits) -> None:
    what = {
        "token": "a token by its name or number; write text",
        "reference": "a reference to another grammar; write all rules here",
    }.get(lexeme.kind)
    if lexeme.kind == "directive" and lexeme.text not in _DIRECTIVES:
        what = f"a directive that is none of {', '.join(sorted(_DIRECTIVES))}"
    if what is not None:
        raise UnsupportedSchema(f"grammar: line {_line(grammar, lexeme.start)} has {what}")
    if lexeme.kind == "text":
        require_at_most("letters in one text", len(lexeme.text), limits.text_letters)
    if lexeme.kind == "regex":
        check_pattern(lexeme.text, limits)
    if lexeme.text == '"' or lexeme.text == "/":
        line = _line(grammar, lexeme.start)
        raise InvalidGrammar(f"grammar: line {line} has a text or an expression without its end")


def _check_attribute(lexeme: _Lexeme, grammar: str) -> None:
    if lexeme.text in _ATTRIBUTES:
        line = _line(grammar, lexeme.start)
        raise UnsupportedSchema(
            f"grammar: line {line} has an attribute of a rule that is not served; leave it out"
        )


def _line(grammar: str, place: int) -> int:
    """Counted where something is refused alone: for each lexeme it takes 10 s of a long grammar."""
    return grammar.count("\n", 0, place) + 1


def _schema(grammar: str, place: int) -> tuple[object, int]:
    """The JSON value behind `place`, and where it ends."""
    start = re.compile(r"\s*").match(grammar, place)
    try:
        return _JSON.raw_decode(grammar, start.end() if start else place)
    except (ValueError, RecursionError):
        line = _line(grammar, place)
        raise InvalidGrammar(f"grammar: line {line} has no JSON where it must have some") from None

"""A producer's own Lark: what is more than Lark is refused, what it holds of JSON is checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from sparkle.errors import GrammarError, GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from sparkle.text.grammar import parser_limits
from sparkle.text.lark_source import guarded_lark
from sparkle.text.schema_limits import SchemaLimits
from tests.text.matched import TINY

LIMITS = SchemaLimits()
SQL = r"""
// a small query
start: "SELECT" _WS columns "FROM" _WS NAME ("LIMIT" INT)?   # at most one
columns: NAME ("," NAME)* | "*"
%import common.INT
%ignore /[ \t]+/
NAME: /[a-z_]+/i
_WS: " "
"""


@pytest.mark.parametrize(
    "grammar",
    [
        SQL,
        'start: "<|im_end|>" | /<think>/ | "@x" | "%llguidance"',
        'start: "a" // <|im_end|> @x %llguidance {}\n',
        'start: "a" # <|im_end|>\n',
        'start: [lead] "x" ~ 2..3 | y{1,4}\nlead: "a"\ny: /b\\/<c>/\n',
        'start: v\nv[suffix="END"]: /(?s:.*)/',
        "start: v\nv[lazy]: /a+b/",
    ],
)
def test_plain_lark_stays_as_it_is(grammar: str) -> None:
    assert guarded_lark(grammar, LIMITS) == grammar


def test_a_schema_in_it_is_the_compilers_afterwards() -> None:
    guarded = guarded_lark('start: "x" v "y"\nv: %json {"type": "integer", "minimum": 3}\nw: "z"', LIMITS)
    assert guarded.startswith('start: "x" v "y"\nv: %json{"type":"integer","minimum":3,"x-guidance":')
    assert guarded.endswith('\nw: "z"')
    made = LLMatcher(TINY.tokens, guarded, log_level=0, limits=parser_limits())
    assert not made.is_error()


@pytest.mark.parametrize(
    ("grammar", "error", "says"),
    [
        ("start: <|im_end|>", UnsupportedSchema, "line 1 has a token"),
        ('start: "a"\n  | <[248046]>', UnsupportedSchema, "line 2 has a token"),
        ("start: <[*]>", UnsupportedSchema, "has a token"),
        ('start: "a"<tool_call>', UnsupportedSchema, "has a token"),
        ("start: @canary", UnsupportedSchema, "reference"),
        ('%llguidance {}\nstart: "a"', UnsupportedSchema, "directive"),
        ("start: %lark { start: <|im_end|> }", UnsupportedSchema, "directive"),
        ("start: v\nv[max_tokens=3]: /a/", UnsupportedSchema, "attribute"),
        ("start: v\nv[lazy, temperature=0.5]: /a/", UnsupportedSchema, "attribute"),
        ('start: v\nv[stop="x"]: /a/', UnsupportedSchema, "attribute"),
        ('start: v\nv[capture="canary"]: /a/', UnsupportedSchema, "attribute"),
        ('start: "canary', InvalidGrammar, "line 1 has a text"),
        ("start: /canary", InvalidGrammar, "line 1 has a text or an expression"),
        ("start: %json {canary}", InvalidGrammar, "no JSON"),
        ("start: %json", InvalidGrammar, "no JSON"),
        ('start: %json {"not": {"const": "canary"}}', UnsupportedSchema, "/not"),
        ('start: %json {"x-guidance": {"lenient": true}}', UnsupportedSchema, "x-guidance"),
        ('start: %json {"multipleOf": 99991}', GrammarTooComplex, "multipleOf"),
        ('start: "' + "a" * 5_000 + '"', GrammarTooComplex, "letters in one text"),
        ("start: /" + "a{1000}" * 300 + "/", GrammarTooComplex, "pattern"),
        ("start: %json " + '{"items":' * 200 + "{}" + "}" * 200, GrammarTooComplex, "levels"),
        ("start: %json " + "[" * 100_000, InvalidGrammar, "no JSON"),
    ],
)
def test_what_is_not_served_is_told_without_it(grammar: str, error: type[GrammarError], says: str) -> None:
    with pytest.raises(error) as caught:
        guarded_lark(grammar, LIMITS)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)


pieces = st.sampled_from(
    [
        "start:",
        " ",
        "\n",
        '"a"',
        '"',
        "/a/",
        "/",
        "\\",
        "<|im_end|>",
        "<",
        ">",
        "//",
        "#",
        "%json",
        "{}",
        "[",
        "@",
        "x",
    ]
)


@given(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join))
def test_whatever_is_let_through_names_no_token_to_the_compiler(grammar: str) -> None:
    source = f'start: "" rest\nrest: {grammar} <|im_end|>'
    try:
        guarded = guarded_lark(source, LIMITS)
    except GrammarError:
        return
    # then the guard took it for a text, an expression or a comment, and so does the compiler
    made = LLMatcher(TINY.tokens, guarded, log_level=0, limits=parser_limits())
    if not made.is_error():
        allowed = int.from_bytes(made.compute_bitmask(), "little")
        start = TINY.tokens.tokenize_str("<|im_start|>", parse_special=True)
        assert not any(allowed >> token & 1 for token in start if TINY.tokens.is_special_token(token))


class _Uncounted(str):
    """A grammar whose lines nobody may count: from its beginning to each word of it, it would take 10 s."""

    def count(self, *_: object) -> int:
        raise AssertionError("lines were counted")


def test_lines_are_counted_of_what_is_refused_alone() -> None:
    schema = "start: v | w\nv: %json {}\n"
    assert guarded_lark(_Uncounted(SQL + schema), LIMITS).startswith(SQL + "start: v | w\nv: %json{")
    with pytest.raises(AssertionError, match="lines were counted"):
        guarded_lark(_Uncounted(SQL + "start: <|im_end|>"), LIMITS)

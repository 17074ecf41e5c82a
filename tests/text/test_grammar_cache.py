"""Compiled grammars are kept by tenant, bounded in number, bytes and time; refusals are kept too."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import ConfigError, GrammarTooComplex
from sparkle.text.grammar_cache import GrammarCache


class Compiler:
    """Compiles a text to its capitals for a cache, and counts."""

    def __init__(self, cache: GrammarCache[str]) -> None:
        self.compiled: list[str] = []
        self._cache = cache

    def get(self, tenant: str, grammar: str) -> str:
        return self._cache.get(tenant, grammar, lambda: self._compile(grammar))

    def _compile(self, grammar: str) -> str:
        self.compiled.append(grammar)
        if grammar.startswith("refused"):
            raise GrammarTooComplex("schema: has 2 values; at most 1 are served: make it simpler")
        return grammar.upper()


def test_a_grammar_is_compiled_once_for_each_tenant() -> None:
    compiler = Compiler(GrammarCache())
    assert [compiler.get(tenant, "a") for tenant in ("one", "one", "two", "one")] == ["A"] * 4
    assert compiler.compiled == ["a", "a"]


def test_a_refusal_is_kept_and_told_each_time() -> None:
    compiler = Compiler(GrammarCache())
    for _ in range(3):
        with pytest.raises(GrammarTooComplex, match="has 2 values; at most 1"):
            compiler.get("one", "refused")
    assert compiler.compiled == ["refused"]


def test_what_is_no_refusal_is_not_kept() -> None:
    calls: list[str] = []

    def broken() -> str:
        calls.append("a")
        raise OSError

    cache = GrammarCache[str]()
    for _ in range(2):
        with pytest.raises(OSError, match=r"^$"):
            cache.get("one", "a", broken)
    assert calls == ["a", "a"]


def test_the_grammar_used_longest_ago_goes_first() -> None:
    compiler = Compiler(GrammarCache(grammars=2))
    for grammar in ("a", "b", "a", "c", "a", "b"):
        compiler.get("one", grammar)
    assert compiler.compiled == ["a", "b", "c", "b"]


def test_bytes_are_those_of_the_text() -> None:
    compiler = Compiler(GrammarCache(text_bytes=4))
    # of ä and é each takes two bytes; what is larger than all that may be kept is not
    for grammar in ("ä", "é", "ä", "b", "ä", "é", "seven!!", "é"):
        compiler.get("one", grammar)
    assert compiler.compiled == ["ä", "é", "b", "é", "seven!!", "é"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.text("xyz", min_size=1, max_size=4)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_the_cache_is_a_list_of_the_last_used(asked: list[tuple[str, str]], grammars: int, most: int) -> None:
    compiler = Compiler(GrammarCache(grammars=grammars, text_bytes=most))
    kept: list[tuple[str, str]] = []
    compiled: list[str] = []
    for tenant, grammar in asked:
        assert compiler.get(tenant, grammar) == grammar.upper()
        if (tenant, grammar) in kept:
            kept.remove((tenant, grammar))
        else:
            compiled.append(grammar)
        kept.append((tenant, grammar))
        while len(kept) > grammars or sum(len(text) for _, text in kept) > most:
            kept.pop(0)
    assert compiler.compiled == compiled


def test_a_grammar_that_nobody_uses_goes_in_time() -> None:
    now_s = 0.0
    cache = GrammarCache[str](keep_s=10.0, clock=lambda: now_s)
    compiler = Compiler(cache)
    compiler.get("one", "a")
    compiler.get("one", "b")
    now_s = 6.0
    compiler.get("one", "a")
    now_s = 10.0
    assert len(cache) == 2
    assert [compiler.get("one", grammar) for grammar in ("a", "b")] == ["A", "B"]
    # b was kept from 0 to 10 and is compiled anew; a was used at 6
    assert compiler.compiled == ["a", "b", "b"]
    cache.close()
    assert len(cache) == 0


def test_it_goes_also_where_nobody_asks_again() -> None:
    cache = GrammarCache[str](keep_s=0.02)
    gone = threading.Event()

    class Held(str):
        def __del__(self) -> None:
            gone.set()

    cache.get("one", "a", lambda: Held("A"))
    assert gone.wait(30.0)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (lambda: GrammarCache[str](grammars=0), "grammars is 0 but must be at least 1"),
        (lambda: GrammarCache[str](text_bytes=0), "text_bytes is 0 but must be at least 1"),
        (lambda: GrammarCache[str](keep_s=0.0), r"keep_s is 0\.0 but must be above 0"),
    ],
)
def test_a_bound_too_low_is_a_wrong_setting(made: Callable[[], object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        made()

"""Bounds, and what is derived."""

from __future__ import annotations

import os

import pytest

from sparkle.engine.settings import EngineSettings, default_model
from sparkle.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"slots": 0}, "slots is 0 but must be at least 1"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"prompt_threads": 0}, "prompt_threads is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"max_context_tokens": 0}, "max_context_tokens is 0"),
        ({"slots": 8, "pass_tokens": 8}, "pass_tokens is 8 but must be above slots, 8"),
        ({"kv_tokens": 15}, "kv_tokens is 15 but must be at least page_tokens, 16"),
    ],
)
def test_a_bad_value_is_refused_with_both_numbers(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**values)


@pytest.mark.parametrize(
    ("wanted", "kv_tokens", "model_tokens", "context"),
    [(None, 1000, 500, 500), (None, 100, 500, 96), (200, 1000, 500, 200), (900, 1000, 500, 500)],
)
def test_context_is_the_least_limit(
    wanted: int | None, kv_tokens: int, model_tokens: int, context: int
) -> None:
    settings = EngineSettings(max_context_tokens=wanted, kv_tokens=kv_tokens)
    assert settings.context_tokens(model_tokens) == context


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (5, 4), (64, 4)])
def test_threads_leave_a_core_to_the_others(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allowed(_: int) -> set[int]:
        return set(range(cores))

    monkeypatch.setattr(os, "sched_getaffinity", allowed)
    assert EngineSettings().compute_threads() == threads
    assert EngineSettings(threads=3).compute_threads() == 3


def test_default_model_is_inside_the_package() -> None:
    assert default_model().parts[-3:] == ("sparkle", "checkpoints", "sparkle-tiny")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 2), (None, 1)])
def test_where_there_is_no_affinity_the_cores_count(
    cores: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert EngineSettings().compute_threads() == threads

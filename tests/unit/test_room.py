"""A prompt needs one token of room behind it: refused otherwise, with both numbers."""

from __future__ import annotations

import pytest

from sparkle.schemas.room import no_room


@pytest.mark.parametrize("prompt_tokens", [1, 99])
def test_a_prompt_with_room_behind_it(prompt_tokens: int) -> None:
    assert no_room(prompt_tokens, 100) is None


@pytest.mark.parametrize("prompt_tokens", [100, 101, 262_145])
def test_a_prompt_without(prompt_tokens: int) -> None:
    assert no_room(prompt_tokens, 100) == (
        f"the prompt has {prompt_tokens} tokens but prompt and answer together have room for 100; "
        "shorten the prompt"
    )

"""Whether a prompt leaves room for an answer. Knows no tokenizer and no model."""

from __future__ import annotations


def no_room(prompt_tokens: int, context_tokens: int) -> str | None:
    """Why a prompt of so many tokens cannot be answered, or None.

    `context_tokens`: the longest prompt and answer together. An answer has at least one token.
    """
    if prompt_tokens < context_tokens:
        return None
    return (
        f"the prompt has {prompt_tokens} tokens but prompt and answer together have room for "
        f"{context_tokens}; shorten the prompt"
    )

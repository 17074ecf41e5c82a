"""Text of a request stays text through whatever a template does with it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkle.errors import InvalidMessage
from sparkle.text.fence import PRIVATE_USE, Fence, unused_mark

SPELLINGS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<think>>", "[X]")
MARK = "\ue000"

# pieces of spellings, so that random texts hold them whole, cut and joined
pieces = st.sampled_from(
    ["<|im_", "start|>", "end|>", "<", "think>", "/think>", "|", ">", "[X", "]", " ", "\n", "a"]
)
texts = st.lists(pieces | st.sampled_from(SPELLINGS), max_size=8).map("".join)


def cut(rendered: str) -> list[tuple[str, bool]]:
    return list(Fence(SPELLINGS).pieces(rendered, MARK))


@given(texts)
@example("<|im_start|>")
def test_fenced_text_has_no_control_token_and_comes_back_whole(text: str) -> None:
    found = cut(Fence(SPELLINGS).around(text, MARK))
    assert found == ([(text, False)] if text else [])


@given(texts, texts)
@example("<|im_", "start|>")
@example("<thi", "nk>")
def test_two_texts_side_by_side_make_none(left: str, right: str) -> None:
    fence = Fence(SPELLINGS)
    found = cut(fence.around(left, MARK) + fence.around(right, MARK))
    assert found == ([(left + right, False)] if left + right else [])


@given(texts, st.sampled_from(["<|im_start|>", "<|im_end|>", "</think>", "[X]"]), st.data())
def test_a_text_completes_no_spelling_that_a_template_began_or_ends(
    text: str, spelling: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(1, len(spelling) - 1))
    content = Fence(SPELLINGS).around(spelling[place:] + text + spelling[:place], MARK)
    found = cut(spelling[:place] + content + spelling[place:])
    assert found == [(spelling + text + spelling, False)]


def after_bracket(text: str) -> str:
    return text.split(">")[-1]


def inner(text: str) -> str:
    return text[1:-1]


@pytest.mark.parametrize(
    "filtered",
    [str.strip, str.lower, str.upper, after_bracket, inner],
    ids=lambda filtered: filtered.__name__,
)
@given(text=texts)
def test_what_templates_do_to_text_frees_no_spelling(filtered: Callable[[str], str], text: str) -> None:
    found = cut(filtered(Fence(SPELLINGS).around(text, MARK)))
    assert not any(is_control for _, is_control in found)


@given(texts)
def test_trimming_a_fenced_text_trims_the_text(text: str) -> None:
    fenced = Fence(SPELLINGS).around(text, MARK)
    assert fenced.strip().replace(MARK, "") == text.strip()


def test_the_templates_own_tags_are_cut_out_the_longest_first() -> None:
    content = Fence(SPELLINGS).around("<think>", MARK)
    assert cut(f"<|im_start|>user\n{content}<|im_end|>\n<think>><think>") == [
        ("<|im_start|>", True),
        ("user\n<think>", False),
        ("<|im_end|>", True),
        ("\n", False),
        ("<think>>", True),
        ("<think>", True),
    ]


def test_the_mark_is_a_character_that_no_text_has() -> None:
    assert unused_mark([]) == "\ue000"
    assert unused_mark(["a\ue000", "\ue001"]) == "\ue002"
    first_block = "".join(map(chr, PRIVATE_USE[0]))
    assert unused_mark([first_block]) == "\U000f0000"


def test_texts_that_use_every_private_character_are_refused() -> None:
    everything = "".join(chr(code) for block in PRIVATE_USE for code in block)
    assert len(everything) == 6_400 + 2 * 65_534
    with pytest.raises(InvalidMessage, match="every private-use character") as caught:
        unused_mark(["x", everything])
    assert not re.search("[\ue000-\uf8ff]", str(caught.value))

"""Log probabilities in OpenAI's forms: tokens by their texts, their bytes, where they begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparkle.producers.logprob_forms import CompletionLogprobs, chat_logprobs
from sparkle.schemas.answer import Alternative, TokenLogprobs

HALF = Alternative(token=4, logprob=-3.0, text="\\xe2", octets=b"\xe2")
END = Alternative(token=9, logprob=-0.25, text="<|im_end|>", octets=b"")
UNKNOWN = Alternative(token=8, logprob=-4.0)


def entry(text: str | None, octets: bytes | None = None, *top: Alternative) -> TokenLogprobs:
    return TokenLogprobs(logprob=-0.5, text=text, octets=octets, top=[*top])


def test_a_token_is_named_by_its_text_and_has_the_bytes_that_it_adds() -> None:
    told = chat_logprobs([3, 9], [entry("é", None, HALF, UNKNOWN), entry("<|im_end|>", b"", END)])
    assert told == {
        "content": [
            {
                **{"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                "top_logprobs": [
                    {"token": "\\xe2", "logprob": -3.0, "bytes": [0xE2]},
                    {"token": "token_id:8", "logprob": -4.0, "bytes": None},
                ],
            },
            {
                **{"token": "<|im_end|>", "logprob": -0.5, "bytes": None},
                "top_logprobs": [{"token": "<|im_end|>", "logprob": -0.25, "bytes": None}],
            },
        ],
        "refusal": None,
    }


def test_without_any_there_are_none() -> None:
    assert chat_logprobs([1], None) is None
    assert CompletionLogprobs().of([1], None) is None


def test_a_completion_says_where_its_tokens_begin() -> None:
    entries = [entry("ab"), entry("\\xc3", b"\xc3"), entry("\\xa9", b"\xa9"), entry("c", None, HALF, END)]
    assert CompletionLogprobs().of([1, 2, 3, 4], entries) == {
        "tokens": ["ab", "\\xc3", "\\xa9", "c"],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [{}, {}, {}, {"\\xe2": -3.0, "<|im_end|>": -0.25}],
        # both halves begin with their character
        "text_offset": [0, 2, 2, 3],
    }


def test_behind_a_token_without_a_text_no_place_is_known() -> None:
    told = CompletionLogprobs()
    first = told.of([1], [entry("ab")])
    assert first is not None
    assert first["text_offset"] == [0]
    for _ in range(2):
        later = told.of([2, 3], [entry(None), entry("c")])
        assert later is not None
        assert (later["tokens"], later["text_offset"]) == (["token_id:2", "c"], None)


@given(st.text(max_size=20), st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_wherever_tokens_and_pieces_are_cut_the_places_are_those_of_the_text(
    text: str, cuts: Sequence[int], pieces: Sequence[int]
) -> None:
    octets = text.encode(errors="ignore")
    edges = sorted({0, len(octets), *(cut for cut in cuts if cut < len(octets))})
    parts = [octets[start:end] for start, end in pairwise(edges)]
    told, offsets = CompletionLogprobs(), list[object]()
    breaks = sorted({0, len(parts), *(one for one in pieces if one < len(parts))})
    for start, end in pairwise(breaks):
        here = [entry(part.decode(errors="backslashreplace"), part) for part in parts[start:end]]
        found = told.of(list(range(start, end)), here)
        assert found is not None
        assert isinstance(found["text_offset"], list)
        offsets += found["text_offset"]
    assert offsets == [len(octets[:edge].decode(errors="ignore")) for edge in edges[:-1]]

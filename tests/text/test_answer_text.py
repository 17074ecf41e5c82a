"""From tokens to the two texts: whole characters, whole stop strings, the tag in neither text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkle.schemas.answer import Channel
from sparkle.text.answer_calls import CallPiece
from sparkle.text.answer_text import AnswerText, TextPiece
from sparkle.text.call_values import ValueForm
from sparkle.text.stop_strings import StopStrings
from sparkle.text.tokenizer import Tokenizer

ANSWER, REASONING = Channel.ANSWER, Channel.REASONING


def written(
    tokenizer: Tokenizer, tokens: Sequence[int], *, stop: Sequence[str] = (), thinking: bool = False
) -> list[TextPiece]:
    """Every piece of an answer that ends after `tokens` or at a stop string."""
    answer = AnswerText(tokenizer, stop=stop, thinking=thinking)
    pieces: list[TextPiece] = []
    for token in tokens:
        pieces += texts(answer.push(token))
        if answer.stopped:
            break
    return pieces + texts(answer.finish())


def texts(pieces: Sequence[TextPiece | CallPiece]) -> list[TextPiece]:
    return [piece for piece in pieces if isinstance(piece, TextPiece)]


def joined(pieces: Sequence[TextPiece | CallPiece], channel: Channel) -> str:
    return "".join(piece.text for piece in texts(pieces) if piece.channel is channel)


def ids(tokenizer: Tokenizer, *parts: str) -> list[int]:
    """Tokens of plain texts and, where a part is an added token's spelling, of that token."""
    found: list[int] = []
    for part in parts:
        token = tokenizer.added_tokens.get(part)
        found += tokenizer.encode(part) if token is None else [token]
    return found


def decoded(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """All bytes at once."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", errors="replace")


class TestCharacters:
    def test_a_character_comes_whole(self, small: Tokenizer) -> None:
        answer = AnswerText(small, stop=(), thinking=False)
        found = [[piece.text for piece in texts(answer.push(byte))] for byte in "é🙂".encode()]
        assert found == [[], ["é"], [], [], [], ["🙂"]]
        assert answer.finish() == []

    def test_a_broken_character_is_replaced_when_it_is_known_to_be(self, small: Tokenizer) -> None:
        answer = AnswerText(small, stop=(), thinking=False)
        assert answer.push(0xF0) == []
        assert answer.push(0x9F) == []
        assert answer.push(ord("x")) == [TextPiece(ANSWER, "\ufffdx", 0, False)]
        assert answer.push(0xC3) == []
        assert answer.finish() == [TextPiece(ANSWER, "\ufffd", 2, False)]
        assert answer.finish() == []

    def test_special_tokens_are_silent_and_break_no_character(self, small: Tokenizer) -> None:
        end = small.added_tokens["<|im_end|>"]
        assert joined(written(small, [0xC3, end, 0xA9, end]), ANSWER) == "é"

    def test_other_added_tokens_are_text(self, small: Tokenizer) -> None:
        tokens = ids(small, "<tool_call>", "x", "</tool_call>")
        assert joined(written(small, tokens), ANSWER) == "<tool_call>x</tool_call>"

    def test_an_id_without_a_token_is_silent(self, small: Tokenizer) -> None:
        assert written(small, [small.vocab_size, small.vocab_size + 100]) == []


class TestChannels:
    def test_the_tag_and_the_newlines_after_it_are_in_neither_text(self, small: Tokenizer) -> None:
        tokens = ids(small, "so\n", "</think>", "\n", "\n\n", "\nyes\n", "\n")
        pieces = written(small, tokens, thinking=True)
        assert joined(pieces, REASONING) == "so\n"
        assert joined(pieces, ANSWER) == "yes\n\n"
        assert pieces[-1].text_start == len("yes\n")

    def test_the_channel_is_that_of_the_next_token(self, small: Tokenizer) -> None:
        answer = AnswerText(small, stop=(), thinking=True)
        assert answer.channel is REASONING
        answer.push(small.added_tokens["</think>"])
        assert answer.channel is ANSWER
        assert AnswerText(small, stop=(), thinking=False).channel is ANSWER

    def test_a_character_cut_by_the_tag_is_replaced_in_the_reasoning(self, small: Tokenizer) -> None:
        tokens = [0xC3, *ids(small, "</think>"), 0xA9, ord("x")]
        pieces = written(small, tokens, thinking=True)
        assert (joined(pieces, REASONING), joined(pieces, ANSWER)) == ("\ufffd", "\ufffdx")

    def test_a_second_tag_is_text(self, small: Tokenizer) -> None:
        tokens = ids(small, "</think>", "a", "</think>", "\n", "<think>")
        assert joined(written(small, tokens, thinking=True), ANSWER) == "a</think>\n<think>"

    def test_without_thinking_tags_and_first_newlines_are_text(self, small: Tokenizer) -> None:
        tokens = ids(small, "\n", "a", "</think>", "\nb")
        assert joined(written(small, tokens), ANSWER) == "\na</think>\nb"

    def test_the_spelling_of_the_tag_in_plain_tokens_ends_nothing(self, small: Tokenizer) -> None:
        tokens = [*b"</think>", ord("a")]
        pieces = written(small, tokens, thinking=True)
        assert (joined(pieces, REASONING), joined(pieces, ANSWER)) == ("</think>a", "")

    def test_an_answer_may_end_while_it_thinks(self, small: Tokenizer) -> None:
        pieces = written(small, ids(small, "hm", "<|im_end|>"), thinking=True)
        assert joined(pieces, REASONING) == "hm"
        assert joined(pieces, ANSWER) == ""


class TestStops:
    def test_text_up_to_the_stop_string_and_no_more(self, small: Tokenizer) -> None:
        answer = AnswerText(small, stop=["end"], thinking=False)
        assert answer.push(ord("x")) == [TextPiece(ANSWER, "x", 0, False)]
        assert answer.push(ord("e")) == []
        assert answer.push(ord("n")) == []
        assert not answer.stopped
        assert answer.push(ord("d")) == [TextPiece(ANSWER, "", 1, True)]
        assert answer.stopped
        assert answer.push(ord("y")) == []
        assert answer.finish() == []

    def test_a_stop_string_inside_one_token_with_text_before_it(self, small: Tokenizer) -> None:
        (token,) = ids(small, "abc")
        assert written(small, [token, token], stop=["b"]) == [TextPiece(ANSWER, "a", 0, True)]

    def test_a_stop_string_does_not_end_the_reasoning(self, small: Tokenizer) -> None:
        tokens = ids(small, "a end b", "</think>", "\n\nc end d")
        pieces = written(small, tokens, stop=["end"], thinking=True)
        assert joined(pieces, REASONING) == "a end b"
        assert joined(pieces, ANSWER) == "c "

    def test_what_is_held_back_comes_at_the_end(self, small: Tokenizer) -> None:
        answer = AnswerText(small, stop=["end"], thinking=False)
        assert answer.push(ord("e")) == []
        assert answer.finish() == [TextPiece(ANSWER, "e", 0, False)]

    def test_the_end_itself_may_complete_a_stop_string(self, small: Tokenizer) -> None:
        assert written(small, [ord("a"), 0xC3], stop=["a\ufffd"]) == [TextPiece(ANSWER, "", 0, True)]

    def test_dropped_newlines_complete_no_stop_string(self, small: Tokenizer) -> None:
        tokens = ids(small, "a", "</think>", "\n\n", "b\n", "\n", "c")
        pieces = written(small, tokens, stop=["\n\n"], thinking=True)
        assert joined(pieces, ANSWER) == "b"


def check_pieces(pieces: Sequence[TextPiece], stop: Sequence[str]) -> None:
    """What holds for the pieces of every answer."""
    length = dict.fromkeys(Channel, 0)
    for number, piece in enumerate(pieces):
        assert piece.text_start == length[piece.channel]
        length[piece.channel] += len(piece.text)
        assert piece.text or piece.stopped
        assert not piece.stopped or number == len(pieces) - 1
    assert not any(string in joined(pieces, ANSWER) for string in stop)
    channels = [piece.channel for piece in pieces]
    assert channels == sorted(channels, key=[REASONING, ANSWER].index)


# bytes that begin, go on with or break a character, letters of the stop strings, merges and added tokens
interesting = st.sampled_from(
    [*b"abcen\n", 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, *range(256, 270)]
)
token_lists = st.lists(interesting | st.integers(0, 275), max_size=30)
stop_lists = st.lists(
    st.text("abcen\né\ufffd", min_size=1, max_size=4) | st.sampled_from(["</think>", "<tool", "end", "€"]),
    max_size=4,
)


class TestAnyTokens:
    @given(token_lists)
    @example([0xF0, 0x9F, 0x98, 0xF0, 0x9F, 0x98, 0x80])
    def test_the_pieces_are_all_bytes_decoded_at_once(self, small: Tokenizer, tokens: list[int]) -> None:
        pieces = written(small, tokens)
        assert joined(pieces, ANSWER) == decoded(small, tokens)
        check_pieces(pieces, ())

    @given(token_lists, stop_lists)
    def test_stop_strings_cut_the_decoded_text(
        self, small: Tokenizer, tokens: list[int], stop: list[str]
    ) -> None:
        whole = decoded(small, tokens)
        pieces = written(small, tokens, stop=stop)
        check_pieces(pieces, stop)
        text = joined(pieces, ANSWER)
        assert whole.startswith(text)
        if pieces and pieces[-1].stopped:
            assert any(whole.startswith(text + string) for string in stop)
        else:
            assert text == whole

    @given(token_lists, token_lists, stop_lists)
    def test_thinking_is_cut_off_at_the_first_tag(
        self, small: Tokenizer, thought: list[int], said: list[int], stop: list[str]
    ) -> None:
        tag = small.added_tokens["</think>"]
        thought = [token for token in thought if token != tag]
        pieces = written(small, [*thought, tag, *said], stop=stop, thinking=True)
        check_pieces(pieces, stop)
        assert joined(pieces, REASONING) == decoded(small, thought)
        strings = StopStrings(stop)
        final, stopped = strings.push(decoded(small, said).lstrip("\n"))
        assert joined(pieces, ANSWER) == (final if stopped else final + strings.finish())

    @given(token_lists, stop_lists, st.booleans())
    def test_what_has_come_so_far_never_changes(
        self, small: Tokenizer, tokens: list[int], stop: list[str], thinking: bool
    ) -> None:
        whole = written(small, tokens, stop=stop, thinking=thinking)
        for number in range(len(tokens)):
            part = AnswerText(small, stop=stop, thinking=thinking)
            pieces = [piece for token in tokens[:number] for piece in part.push(token)]
            for channel in Channel:
                assert joined(whole, channel).startswith(joined(pieces, channel))


@pytest.mark.parametrize("thinking", [False, True])
def test_the_real_tokenizer_writes_what_it_read(real: Tokenizer, thinking: bool) -> None:
    text = "Grüße, 世界! 👩‍👩‍👧‍👦 नमस्ते\n\n```py\nprint('加拿大')\n```"
    channel = REASONING if thinking else ANSWER
    assert joined(written(real, real.encode(text), thinking=thinking), channel) == text


FORMS = {"get": {"city": ValueForm(raw=True)}, "stop": {}}
GET = [
    "<tool_call>",
    "\n<function=get>\n<parameter=city>\nParis\n</parameter>\n</function>\n",
    "</tool_call>",
]
STOP = ["<tool_call>", "\n<function=stop>\n</function>\n", "</tool_call>"]


class TestCalls:
    def read(
        self, tokenizer: Tokenizer, *parts: str, stop: Sequence[str] = (), thinking: bool = False
    ) -> tuple[AnswerText, list[TextPiece | CallPiece]]:
        answer = AnswerText(tokenizer, stop=stop, thinking=thinking, calls=FORMS)
        pieces = [piece for token in ids(tokenizer, *parts) for piece in answer.push(token)]
        return answer, pieces

    def test_prose_comes_without_the_white_space_before_a_call(self, small: Tokenizer) -> None:
        answer, pieces = self.read(small, "Well,  then \n\n", *GET, "\n", *STOP)
        assert joined(pieces, ANSWER) == "Well,  then"
        calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
        assert [(piece.index, piece.name) for piece in calls if piece.name] == [(0, "get"), (1, "stop")]
        assert "".join(piece.arguments for piece in calls if piece.index == 0) == '{"city": "Paris"}'
        assert answer.called
        assert answer.finish() == []

    def test_white_space_at_the_end_of_prose_is_text(self, small: Tokenizer) -> None:
        answer, pieces = self.read(small, "Well, \n")
        assert joined(pieces, ANSWER) == "Well,"
        assert joined(answer.finish(), ANSWER) == " \n"
        assert not answer.called

    def test_the_name_comes_first_and_a_text_as_it_is_written(self, small: Tokenizer) -> None:
        # a token a byte, but for the tags
        _, pieces = self.read(small, *GET)
        calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
        assert calls[0] == CallPiece(0, "get", "", 0)
        assert [piece.arguments for piece in calls[1:]] == ['{"city": ', '"P', *"aris", '"', "}"]
        starts = [sum(len(before.arguments) for before in calls[:place]) for place in range(len(calls))]
        assert [piece.arguments_start for piece in calls] == starts

    def test_calls_stand_behind_the_thoughts_only(self, small: Tokenizer) -> None:
        answer, pieces = self.read(small, "a", *STOP, "b", "</think>", "\n\n", *STOP, thinking=True)
        assert joined(pieces, REASONING) == f"a{''.join(STOP)}b"
        assert [piece for piece in pieces if isinstance(piece, CallPiece)] == [
            CallPiece(0, "stop", "", 0),
            CallPiece(0, None, "{}", 0),
        ]
        assert answer.called

    def test_a_cut_call_is_none(self, small: Tokenizer) -> None:
        answer, _ = self.read(small, *STOP, "\n", "<tool_call>", "\n<function=get>\n")
        assert not answer.called
        assert answer.finish() == []

    def test_a_stop_string_ends_prose_and_no_value(self, small: Tokenizer) -> None:
        answer, pieces = self.read(small, "one END", *STOP, stop=["END"])
        assert (answer.stopped, joined(pieces, ANSWER)) == (True, "one ")
        answer, pieces = self.read(small, "EN\n", *GET, stop=["END", "Paris"])
        assert (answer.stopped, joined(pieces, ANSWER), answer.called) == (False, "EN", True)

    def test_without_tools_its_tag_is_text(self, small: Tokenizer) -> None:
        assert joined(written(small, ids(small, *STOP)), ANSWER) == "".join(STOP)

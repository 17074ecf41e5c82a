"""The shortest ways out of a text or a number that may not end where it stands. Knows no schema.

What the schema tells of them is tried first. Else they are looked for byte by byte, short ones first. Bytes
that leave the same to follow as others before them lead nowhere new: it is as if the pattern's automaton were
walked through, which nobody shows. Of a number two digits are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkle.text.known_ways import KnownWays
from sparkle.text.matcher import Matcher
from sparkle.text.tokenizer import Tokenizer
from sparkle.text.tokenizer_file import byte_characters
from sparkle.text.way import Move, Way

FIRST_LETTERS = b"a0A1"
"""Those that stand for many others come first."""
QUOTE, BACKSLASH = ord('"'), ord("\\")
MOST_DIGITS = 2
"""Each remainder that is looked at is one more state that the library keeps, of which it has a limit."""
BEHIND_NUMBERS = "}],"


class WaysOut:
    """Looks for them with the tokens of one vocabulary that are a single byte."""

    def __init__(self, tokenizer: Tokenizer, out_of_text: Sequence[Move]) -> None:
        """`out_of_text`: what ends a text."""
        characters = byte_characters()
        order = [*FIRST_LETTERS, *(byte for byte in range(0x20, 0x100) if byte not in FIRST_LETTERS)]
        tokens = {byte: tokenizer.id_of(characters[byte]) for byte in order}
        # a quote would be the end, which is not there, or is escaped
        self._bytes = [(token,) for byte, token in tokens.items() if token is not None and byte != 0x7F]
        self._backslash = tokens[BACKSLASH]
        self._digits = [(token,) for byte in b"0123456789" if (token := tokens[byte]) is not None]
        self._letters = {token for byte in b"abcdfgxyzABCDXYZ_" if (token := tokens[byte]) is not None}
        self._behind_numbers = [
            (token,) for byte in BEHIND_NUMBERS.encode() if (token := tokens[byte]) is not None
        ]
        self._out_of_text = out_of_text
        self._token_bytes = tokenizer.token_bytes
        self._encode = tokenizer.encode

    def find(self, way: Way, tried: set[bytes]) -> Iterator[Move]:
        """As long as somebody asks for another; `tried`: the masks that this was asked for before."""
        if way.mask in tried:
            return
        tried.add(way.mask)
        if self._is_number(way):
            yield from self._out_of_number(way.state)
        yield from self._byte_by_byte(way)

    def known(self, way: Way, known: KnownWays) -> Iterator[Move]:
        """Those among what the schema tells that lead out from here."""
        # or a text that has digits alone here
        if self._is_number(way):
            written = b"".join(map(self._token_bytes, way.state.newest))
            digits = (self._spelling(text) for text in known.digits(written))
            yield from (move for move in digits if self._ends_behind(way.state, move))
        for text in known.texts:
            move, end = self._spelling(text), self._spelling(known.text_end)
            if way.state.count_allowed((*move, *end)) == len(move) + len(end) and (
                end or way.state.may_end_behind(move)
            ):
                yield move

    def _is_number(self, way: Way) -> bool:
        return any(way.allows(token) for (token,) in self._digits) and not any(
            way.allows(token) for token in self._letters
        )

    def _out_of_number(self, start: Matcher) -> Iterator[Move]:
        """Digits behind which something may follow that is not of the number."""
        level: list[tuple[Matcher, Move]] = [(start, ())]
        for length in range(1, MOST_DIGITS + 1):
            deeper: list[tuple[Matcher, Move]] = []
            for state, digits in level:
                for digit in self._digits:
                    if not state.count_allowed(digit):
                        continue
                    if self._ends_behind(state, digit):
                        yield (*digits, *digit)
                    elif length < MOST_DIGITS:
                        ahead = state.copy()
                        ahead.accept(digit)
                        deeper.append((ahead, (*digits, *digit)))
            level = deeper

    def _ends_behind(self, state: Matcher, digits: Move) -> bool:
        if state.may_end_behind(digits):
            return True
        return any(state.count_allowed((*digits, *more)) == len(digits) + 1 for more in self._behind_numbers)

    def _spelling(self, text: str) -> Move:
        return tuple(self._encode(text))

    def _byte_by_byte(self, start: Way) -> Iterator[Move]:
        seen, level = {start.mask}, [start]
        while level:
            deeper: list[Way] = []
            for way in level:
                for move in way.following(self._bytes):
                    if start.budget.places <= 0:
                        return
                    ahead = way.behind(move)
                    if ahead.mask in seen:
                        continue
                    seen.add(ahead.mask)
                    if move[0] != self._backslash and self._is_out(ahead):
                        yield ahead.tokens[len(start.tokens) :]
                    else:
                        deeper.append(ahead)
            level = deeper

    def _is_out(self, way: Way) -> bool:
        return way.state.may_end() or any(True for _ in way.following(self._out_of_text))

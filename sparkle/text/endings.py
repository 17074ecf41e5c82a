"""Finds a short way from where an answer stands to where its grammar lets it end. Knows no schema, no model.

At each step there is a first choice: what the grammar forces, else what closes most often, else the letter
that leaves the least to choose. That way is followed to its end. Where it has none, or none with room, ways
that leave it once are looked at, the early ones first, then those that leave it twice, and so on (limited
discrepancy search, Harvey and Ginsberg 1995). So the ending is a short one, not proved to be the shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice

from sparkle.text.matcher import Matcher
from sparkle.text.tokenizer import Tokenizer

TAGS = ("</tool_call>",)
"""Added tokens that close."""
OUT_OF_TEXT = ("\n</parameter>\n</function>\n", "\n</parameter>\n", "</function>\n", '"')
CLOSING = ("}", "]", "0", "[]", "{}", '""', "null", "true", "false", ":", ",", '{"', "{", "[")
LETTERS = "a01bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789-_./:@+"
LONG_RUN = "-" * 32
BLANKS = (" ", "\n")
"""Only where nothing else may follow."""
COMPARED_LETTERS = 16
MOST_OTHERS = 4
FEW_FILLED = 4
"""Letters of a free text one by one, before it is filled by long runs."""
MOST_STATES = 600
"""That one search looks at: 0.1 to 0.2 ms each with a vocabulary of 248,320."""
FREE_SHARE = 1 / 64
"""Of a mask's bytes: where more than that allow a token, and more than FREE_BYTES, the text is free."""
FREE_BYTES = 40

Move = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """Tokens behind the answer, where they lead, and what may follow them, as `Matcher.allowed` has it."""

    state: Matcher
    mask: bytes
    tokens: Move = ()
    filled: int = 0
    """Moves since the last one that was not inside a free text."""


class Endings:
    """Searches in grammars of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, *, rows: int) -> None:
        """`rows`: of the vocabulary."""
        self._tokenizer = tokenizer
        tags = [(tokenizer.added_tokens[tag],) for tag in TAGS if tag in tokenizer.added_tokens]
        self._out_of_text = [*tags, *map(self._spelling, OUT_OF_TEXT)]
        self._closing = [*self._out_of_text, *map(self._spelling, CLOSING)]
        self._letters = [*map(self._spelling, LETTERS)]
        self._long_run = [self._spelling(LONG_RUN)]
        self._blanks = [*map(self._spelling, BLANKS)]
        self._free = max(FREE_BYTES, int(rows / 8 * FREE_SHARE))

    def find(self, state: Matcher, most: int) -> Move | None:
        """At most so many tokens behind which the answer may end; None where none are found.

        Raises MatcherFailed or GrammarTooComplex where the state is lost.
        """
        if most < 0:
            return None
        order = count()
        # by choices that were not the first, then by length
        waiting: list[tuple[int, int, int, _Way, Move]] = [(0, 0, next(order), _Way(state, b""), ())]
        for _ in range(MOST_STATES):
            if not waiting:
                break
            others, _, _, before, move = heappop(waiting)
            way = self._behind(before, move)
            if way.state.may_end():
                # spelled as the tokenizer would it may be shorter
                ending = self._spelled(state, way.tokens)
                if len(ending) <= most:
                    return ending
                continue
            for place, further in enumerate(self._moves(way)):
                length = len(way.tokens) + len(further)
                if length <= 2 * most:
                    heappush(waiting, (others + place, length, next(order), way, further))
        return None

    def _moves(self, way: _Way) -> Iterator[Move]:
        """What may follow, the first choice first."""
        forced = way.state.forced()
        if forced:
            yield tuple(forced)
        elif self._is_free(way):
            yield from _following(way, self._out_of_text)
            one = islice(_following(way, self._letters), 1)
            runs = _following(way, self._long_run)
            yield from (*one, *runs) if way.filled < FEW_FILLED else (*runs, *one)
        else:
            closing = [*_following(way, self._closing)]
            letters = [*islice(_following(way, self._letters), COMPARED_LETTERS)]
            if not closing and len(letters) > 1:
                letters.sort(key=lambda letter: _breadth(self._behind(way, letter)))
            blanks = [] if closing or letters else [*_following(way, self._blanks)]
            # behind half a character none of these follows
            yield from (*closing, *letters, *blanks) or islice(_allowed(way), MOST_OTHERS)

    def _behind(self, way: _Way, move: Move) -> _Way:
        state = way.state.copy()
        state.accept(move)
        filled = way.filled + 1 if self._is_free(way) else 0
        return _Way(state, state.allowed(), (*way.tokens, *move), filled)

    def _is_free(self, way: _Way) -> bool:
        return _breadth(way) > self._free

    def _spelling(self, text: str) -> Move:
        return tuple(self._tokenizer.encode(text))

    def _spelled(self, start: Matcher, tokens: Move) -> Move:
        """The same text in the tokens that the tokenizer would take, where the grammar allows them too."""
        octets = b"".join(self._tokenizer.token_bytes(token) for token in tokens)
        try:
            spelled = self._spelling(octets.decode())
        except UnicodeDecodeError:
            return tokens
        if len(spelled) >= len(tokens) or start.count_allowed(spelled) < len(spelled):
            return tokens
        other = start.copy()
        other.accept(spelled)
        return spelled if other.may_end() else tokens


def _breadth(way: _Way) -> int:
    """How much may follow: bytes of the mask that are not zero, quicker to count than bits."""
    return len(way.mask) - way.mask.count(0)


def _allowed(way: _Way) -> Iterator[Move]:
    """Each token that may follow, lowest first."""
    for place, octet in enumerate(way.mask):
        yield from ((8 * place + bit,) for bit in range(8) if octet >> bit & 1)


def _following(way: _Way, moves: Sequence[Move]) -> Iterator[Move]:
    """Those of the moves that are allowed."""
    for move in moves:
        if way.mask[move[0] // 8] >> move[0] % 8 & 1 and (
            len(move) == 1 or way.state.count_allowed(move) == len(move)
        ):
            yield move

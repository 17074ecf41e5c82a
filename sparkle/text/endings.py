"""Finds a short way from where an answer stands to where its grammar lets it end. Knows no schema, no model.

At each step there is a first choice: what the grammar forces, else what closes most often, else the shortest
way out of the text or number that it stands in. That way is followed to its end. Where it has none, or none
with room, ways that leave it once are looked at, the early ones first, then those that leave it twice, and so
on (limited discrepancy search, Harvey and Ginsberg 1995). So the ending is a short one, not proved to be the
shortest.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, islice

from sparkle.text.known_ways import NOTHING_KNOWN, KnownWays
from sparkle.text.matcher import Matcher
from sparkle.text.tokenizer import Tokenizer
from sparkle.text.way import Budget, Move, Way
from sparkle.text.ways_out import WaysOut

TAGS = ("</tool_call>",)
"""Added tokens that close."""
OUT_OF_TEXT = ("\n</parameter>\n</function>\n", "\n</parameter>\n", "</function>\n", '"')
VALUES = ("0", "null", "true", "false")
CLOSING = ("}", "]", "[]", "{}", '""', *VALUES, ":", ",", '{"', "{", "[")
LETTERS = "a01bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ23456789-_./:@+"
LONG_RUN = "-" * 32
BLANKS = (" ", "\n")
"""Only where nothing else may follow."""
MOST_OTHERS = 4
FEW_FILLED = 4
"""Letters of a free text one by one, before it is filled by long runs."""
MOST_PLACES = 1_000
"""That one search looks at: 0.1 to 0.2 ms each with a vocabulary of 248,320."""
FREE_SHARE = 1 / 64
"""Of a mask's bytes: where more than that allow a token, and more than FREE_BYTES, the text is free."""
FREE_BYTES = 40


class Endings:
    """Searches in grammars of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, *, rows: int) -> None:
        """`rows`: of the vocabulary."""
        self._tokenizer = tokenizer
        tags = [(tokenizer.added_tokens[tag],) for tag in TAGS if tag in tokenizer.added_tokens]
        self._out_of_text = [*tags, *map(self._spelling, OUT_OF_TEXT)]
        self._closing = [*self._out_of_text, *map(self._spelling, CLOSING)]
        # in the midst of a text or a number these are letters and digits of it
        self._values = {*map(self._spelling, VALUES)}
        self._letters = [*map(self._spelling, LETTERS)]
        self._long_run = [self._spelling(LONG_RUN)]
        self._blanks = [*map(self._spelling, BLANKS)]
        self._free = max(FREE_BYTES, int(rows / 8 * FREE_SHARE))
        self._ways_out = WaysOut(tokenizer, self._out_of_text)

    def find(self, state: Matcher, most: int, known: KnownWays = NOTHING_KNOWN) -> Move | None:
        """At most so many tokens behind which the answer may end; None where none are found.

        `known`: what its schema tells.

        Raises MatcherFailed or GrammarTooComplex where the state is lost.
        """
        if most < 0:
            return None
        if state.may_end():
            return ()
        budget, order, tried = Budget(MOST_PLACES), count(), set[bytes]()
        start = Way.from_here(state, budget)
        # by choices that were not the first, then by length
        waiting = [(0, 0, next(order), start, self._moves(start, tried, known))]
        while waiting and budget.places > 0:
            others, length, _, before, moves = heappop(waiting)
            move = next(moves, None)
            if move is None:
                continue
            heappush(waiting, (others + 1, length, next(order), before, moves))
            way = before.behind(move, filled=before.filled + 1 if self._is_free(before) else 0)
            if way.state.may_end():
                # spelled as the tokenizer would it may be shorter
                ending = self._spelled(state, way.tokens)
                if len(ending) <= most:
                    return ending
            elif len(way.tokens) <= 2 * most:
                further = self._moves(way, tried, known)
                heappush(waiting, (others, len(way.tokens), next(order), way, further))
        return None

    def _moves(self, way: Way, tried: set[bytes], known: KnownWays) -> Iterator[Move]:
        """What may follow, the first choice first."""
        forced = way.state.forced()
        if forced:
            yield tuple(forced)
            return
        free = self._is_free(way)
        closing = [*way.following(self._out_of_text if free else self._closing)]
        if self._values.issuperset(closing):
            yield from islice(self._ways_out.known(way, known), 1)
            yield from islice(self._ways_out.find(way, tried), 1)
        yield from closing
        if free:
            one, runs = islice(way.following(self._letters), 1), way.following(self._long_run)
            yield from (*one, *runs) if way.filled < FEW_FILLED else (*runs, *one)
            return
        letters = [*way.following(self._letters)]
        yield from letters
        if not closing and not letters:
            # behind half a character neither a blank follows
            yield from [*way.following(self._blanks)] or islice(way.every_token(), MOST_OTHERS)

    def _is_free(self, way: Way) -> bool:
        return way.breadth > self._free

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

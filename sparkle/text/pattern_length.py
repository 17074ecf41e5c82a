"""How long a regular expression is with its counted repeats written out. Knows no schema and no compiler."""

from __future__ import annotations

import re

_REPEAT = re.compile(r"\{(\d{1,9})(,?)(\d{0,9})\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pPxu]\{[^}]*\}?|.|$)", re.DOTALL)


def unrolled_length(pattern: str) -> int:
    """Characters and classes of `pattern` with each `{m,n}` written out n times: about a compiler's states.

    A pattern that is no regular expression has a length too; refusing it is the compiler's business.
    """
    open_groups = [0]  # lengths so far, of the whole and of each group that is open
    atom = 0  # length of what a repeat would repeat
    place = 0
    while place < len(pattern):
        repeat = _REPEAT.match(pattern, place)
        if repeat:
            times = max(int(repeat[1]), int(repeat[3] or 0), 1)
            open_groups[-1] += atom * (times - 1)
            atom *= times
            place = repeat.end()
            continue
        letter = pattern[place]
        if letter == "(":
            open_groups.append(0)
            atom = 0
        elif letter == ")" and len(open_groups) > 1:
            atom = open_groups.pop()
            open_groups[-1] += atom
        elif letter not in "*+?|":
            atom = 1
            open_groups[-1] += 1
        place = _end_of(pattern, place)
    return sum(open_groups)


def _end_of(pattern: str, place: int) -> int:
    """Where the character, class or escape that begins at `place` ends."""
    for form in (_CLASS, _ESCAPE):
        found = form.match(pattern, place)
        if found:
            return found.end()
    return place + 1

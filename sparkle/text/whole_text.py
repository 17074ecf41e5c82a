"""From a JSON schema's `pattern`, which is looked for in a text, to an expression of the whole text.

Knows anchors at the ends alone; the compiler of raw texts knows none.
"""

from __future__ import annotations

import re

from llguidance import regex_to_lark

from sparkle.errors import UnsupportedSchema
from sparkle.text.pattern_dialect import served_pattern

_ESCAPES_AND_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def whole_text(pattern: object) -> str | None:
    """What stands between the slashes of a Lark terminal; None where an anchor stands inside, or flags do."""
    if not isinstance(pattern, str):
        return None
    # of the same meaning as far as anchors and alternatives go
    bare = _ESCAPES_AND_CLASSES.sub("x", pattern)
    begins, ends = bare.startswith("^"), bare.endswith("$")
    inner = bare[begins : len(bare) - ends]
    if "^" in inner or "$" in inner or "(?" in inner.replace("(?:", ""):
        return None
    # an anchor would hold for one side of the alternative only
    if (begins or ends) and _has_alternatives(inner):
        return None
    body = pattern[begins : len(pattern) - ends]
    try:
        served = served_pattern(body, "")
    except UnsupportedSchema:
        return None
    # \d and \w are of ASCII in a schema
    return regex_to_lark(f"{'' if begins else '(?s:.*)'}(?:{served}){'' if ends else '(?s:.*)'}", "dw")


def _has_alternatives(bare: str) -> bool:
    """Whether there is a bar outside of all groups."""
    depth = 0
    for letter in bare:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            return True
    return False

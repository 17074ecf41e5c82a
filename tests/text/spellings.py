"""The texts in which one JSON value can be written: a grammar may have chosen another than a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import cast

MOST = 5_000
"""Texts tried of one value."""


def spellings(value: object) -> Iterator[str]:
    """With the keys in every order, and whole numbers without a point."""
    return (json.dumps(form, ensure_ascii=False) for form in islice(_forms(value), MOST))


def _forms(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        held = cast(dict[str, object], value)
        for names in permutations(held):
            for values in product(*(list(islice(_forms(held[name]), MOST)) for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        for entries in product(*(list(islice(_forms(entry), MOST)) for entry in cast(list[object], value))):
            yield list(entries)
    elif isinstance(value, float) and value.is_integer():
        yield int(value)
    else:
        yield value

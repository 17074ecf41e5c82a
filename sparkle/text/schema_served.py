"""A checked schema in the compiler's words: patterns in its dialect, formats that it gets wrong as patterns.

Knows no compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sparkle.text.pattern_dialect import served_pattern
from sparkle.text.schema_formats import OWN_FORMATS, format_schema
from sparkle.text.schema_places import LISTS, MAPS, SINGLE

_ALL_TYPES: list[object] = ["null", "boolean", "object", "array", "number", "string"]
_FORMATS = "x-sparkle-formats"
"""Where the schemas of formats stand in a served schema, each once, however many texts have it."""

Schema = Mapping[str, object]


def served_schema(schema: Schema) -> dict[str, object]:
    """A copy of `schema`, which `check_schema` has found to be no deeper than its limit.

    Keys keep their order. Raises UnsupportedSchema with the path of a pattern that has no such words.
    """
    copier = _Copier()
    served = copier.schema(schema, "")
    if copier.formats:
        served[_FORMATS] = {name: format_schema(name) for name in sorted(copier.formats)}
    return served


class _Copier:
    """Copies a schema, and keeps in mind which formats' schemas the copy refers to."""

    def __init__(self) -> None:
        self.formats: set[str] = set()

    def schema(self, schema: Schema, path: str) -> dict[str, object]:
        copy = {keyword: self._behind(keyword, held, f"{path}/{keyword}") for keyword, held in schema.items()}
        if (name := copy.get("format")) in OWN_FORMATS:
            types = copy.pop("type", _ALL_TYPES)
            del copy["format"]
            listed = cast(list[object], types) if isinstance(types, list) else [types]
            texts = self._of_format(str(name), listed)
            copy["allOf"] = [*cast(list[object], copy.get("allOf", [])), texts]
        return copy

    def _behind(self, keyword: str, held: object, path: str) -> object:
        if keyword == "pattern" and isinstance(held, str):
            return served_pattern(held, path)
        if keyword in MAPS and isinstance(held, Mapping):
            entries = enumerate(cast(Schema, held).items())
            patterns = keyword == "patternProperties"
            return {
                served_pattern(name, f"{path}/{place}") if patterns else name: self._any(
                    entry, f"{path}/{place}"
                )
                for place, (name, entry) in entries
            }
        if keyword in (*LISTS, *SINGLE) and isinstance(held, list):
            entries_of_list = enumerate(cast(list[object], held))
            return [self._any(entry, f"{path}/{place}") for place, entry in entries_of_list]
        return self._any(held, path) if keyword in SINGLE else held

    def _any(self, schema: object, path: str) -> object:
        return self.schema(cast(Schema, schema), path) if isinstance(schema, Mapping) else schema

    def _of_format(self, name: str, types: list[object]) -> dict[str, object]:
        """A value of `types` that is in its format if it is a text."""
        others = [given for given in types if given != "string"]
        if "string" not in types:
            return {"type": others}
        self.formats.add(name)
        # a reference on its own has one grammar wherever it stands: thirty of them cost as one
        texts: dict[str, object] = {"$ref": f"#/{_FORMATS}/{name}"}
        return {"anyOf": [texts, {"type": others}]} if others else texts

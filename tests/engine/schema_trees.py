"""Random JSON schemas under which something is valid, for tests of answers in their shapes."""

from __future__ import annotations

from hypothesis import strategies as st

Schema = dict[str, object]
LEAVES: tuple[Schema, ...] = (
    {"type": "string", "maxLength": 6},
    {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"},
    {"type": "integer", "minimum": -5, "maximum": 40},
    {"type": "number", "exclusiveMinimum": 0},
    {"enum": ["é", "low", 7, None]},
    {"const": {"a": [1]}},
    {"type": "boolean"},
)


def array_of(items: Schema, least: int, more: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}


def object_of(values: list[Schema], required: int) -> Schema:
    return {
        "type": "object",
        "properties": {f"k{place}": value for place, value in enumerate(values)},
        "required": [f"k{place}" for place in range(min(required, len(values)))],
        "additionalProperties": False,
    }


def either(one: Schema, other: Schema) -> Schema:
    return {"anyOf": [one, other]}


def _grown(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    few = st.integers(0, 2)
    return st.one_of(
        st.builds(array_of, inner, few, few),
        st.builds(object_of, st.lists(inner, max_size=3), st.integers(0, 3)),
        st.builds(either, inner, st.sampled_from(LEAVES)),
    )


SCHEMA_TREES: st.SearchStrategy[Schema] = st.recursive(st.sampled_from(LEAVES), _grown, max_leaves=6)

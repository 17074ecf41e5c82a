"""Behind which keywords of a JSON schema other schemas stand. Knows nothing else of them."""

from __future__ import annotations

MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""By name."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalItems", "additionalProperties")
"""One each; `items` in old drafts perhaps a list."""

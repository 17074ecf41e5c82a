"""A checked JSON schema as llguidance's grammar, its vocabulary and its limits. Compiles nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from sparkle.text.schema_limits import SchemaLimits, compact
from sparkle.text.schema_support import check_schema
from sparkle.text.tokenizer_file import read_tokenizer

SPACE = r"[ \n]{1,24}"
"""Between the parts of a JSON text. Without an end to it a model may write line breaks for ever; this much is
a line break and five levels of indentation."""

_ESCAPES = 'nrbtf\\"'
"""What may follow a backslash in a text. Not u: the library takes a name that is spelled with it for none of
the properties, and in `{"a": 1, "\\u0061": "x"}` the second `a`, the one that counts, would be unchecked."""

_OPTIONS = {
    # each one said, so that none is what the library happens to have
    "whitespace_flexible": True,
    "whitespace_pattern": SPACE,
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": _ESCAPES,
    "json_allow_general_unicode_escapes": False,
}


def json_schema_grammar(schema: object, limits: SchemaLimits) -> str:
    """The grammar of JSON texts that are valid under `schema`; raises as `checked_schema` does."""
    return LLMatcher.grammar_from_json_schema(checked_schema(schema, limits))


def checked_schema(schema: object, limits: SchemaLimits) -> str:
    """The JSON text by which the library knows `schema` and how to write its values, for `%json` as well.

    Raises as `check_schema` does.
    """
    return compact({**check_schema(schema, limits), "x-guidance": _OPTIONS})


def read_vocabulary(directory: Path, *, rows: int, end_tokens: Sequence[int]) -> LLTokenizer:
    """The tokens of a checkpoint as the compiler knows them, in as many `rows` as the model's head has.

    A grammar that is complete lets any of `end_tokens` follow. No row without a token is ever allowed. Raises
    CheckpointError or UnsupportedModel as `read_tokenizer` does.
    """
    return LLTokenizer(read_tokenizer(directory).to_str(), n_vocab=rows, eos_token=list(end_tokens))


def parser_limits() -> LLParserLimits:
    """What a matcher may use, as the library has it, and errors without the grammar in them."""
    return LLParserLimits(verbose_errors=False)

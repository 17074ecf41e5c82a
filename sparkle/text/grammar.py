"""A checked JSON schema as llguidance's grammar, its vocabulary and its limits. Compiles nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from sparkle.errors import UnsupportedSchema
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.schema_support import check_schema
from sparkle.text.tokenizer_file import read_tokenizer

SPACE = r"[ \n]{1,24}"
"""Between the parts of a JSON text. Without an end to it a model may write line breaks for ever; this much is
a line break and five levels of indentation."""


def json_schema_grammar(schema: object, limits: SchemaLimits) -> str:
    """The grammar of JSON texts that are valid under `schema`; raises as `check_schema` does."""
    if schema is False:
        raise UnsupportedSchema("schema: / is false, under which nothing is valid; give an object")
    text = check_schema({} if schema is True else schema, limits)
    return LLMatcher.grammar_from_json_schema(
        text,
        # each one said, so that nothing in a schema says otherwise
        overrides={
            "whitespace_flexible": True,
            "whitespace_pattern": SPACE,
            "coerce_one_of": False,
            "lenient": False,
        },
    )


def read_vocabulary(directory: Path, *, rows: int, end_tokens: Sequence[int]) -> LLTokenizer:
    """The tokens of a checkpoint as the compiler knows them, in as many `rows` as the model's head has.

    A grammar that is complete lets any of `end_tokens` follow. No row without a token is ever allowed. Raises
    CheckpointError or UnsupportedModel as `read_tokenizer` does.
    """
    return LLTokenizer(read_tokenizer(directory).to_str(), n_vocab=rows, eos_token=list(end_tokens))


def parser_limits() -> LLParserLimits:
    """What a matcher may use, as the library has it, and errors without the grammar in them."""
    return LLParserLimits(verbose_errors=False)

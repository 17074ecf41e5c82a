"""What grammars are measured with: the texts are valid, and so are the answers of sparkle-tiny."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest

from bench.masks import typical
from bench.shaped_kept import verdict_schema
from scripts.train_tiny.answers import verdict_object
from scripts.train_tiny.evaluate import held_out_questions


@pytest.mark.parametrize("properties", [1, 30])
def test_a_typical_text_is_valid_under_its_schema(properties: int) -> None:
    schema, text = typical(Random(properties), properties)
    values = json.loads(text)
    assert len(values) == properties
    jsonschema.validate(values, schema)


def test_what_sparkle_tiny_was_trained_to_answer_is_valid_under_its_schema() -> None:
    for alert, _ in held_out_questions(20):
        jsonschema.validate(verdict_object(alert), verdict_schema())

"""Whatever sparkle-tiny writes under a schema is valid: at temperature 1.5, with drafts, beside others."""

from __future__ import annotations

import pytest

from sparkle.engine.frames import Finished
from tests.engine.schema_answers import Written, answers_to
from tests.text.schema_examples import Example, examples

STEP = 16
"""Of the examples, every so many."""


def written_of(of: tuple[Example, ...]) -> list[Written]:
    """All answers, which have ended and are valid."""
    written = list(answers_to(of))
    assert len(written) == len(of)
    assert [(one.example.name, one.answer.text) for one in written if not (one.ended and one.valid)] == []
    return written


@pytest.mark.timeout(300)  # 20 s of computing, of which a loaded machine makes more
def test_some_of_them() -> None:
    ends = [one.answer.end for one in written_of(examples()[::STEP])]
    finished = [end for end in ends if isinstance(end, Finished)]
    assert len(finished) == len(ends)
    # most guesses of a model as hot as that are wrong; what must follow is not guessed
    assert sum(end.drafted_tokens for end in finished) > sum(end.completion_tokens for end in finished)
    assert sum(end.accepted_tokens for end in finished) > len(finished)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_all_of_them() -> None:
    written_of(examples())

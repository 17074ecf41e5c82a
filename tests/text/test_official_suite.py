"""The official suite's schemas are enforced or refused; none is enforced wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkle.config import environment
from tests.text.matched import TINY, Vocabulary
from tests.text.official_suite import DRAFTS, archive, run

# passed and refused; docs/schemas.md has them by group
COUNTS = {
    "draft6": (738, 411),
    "draft7": (842, 623),
    "draft2019-09": (926, 938),
    "draft2020-12": (935, 971),
}


@pytest.fixture(scope="module")
def suite() -> Path:
    """The archive; without it, skip on a laptop and fail in CI."""
    path = archive()
    if path is None:
        if environment().get("CI"):
            pytest.fail("no source archive of jsonschema: `make test` downloads it")
        pytest.skip("no source archive of jsonschema: `make test` downloads it")
    return path


@pytest.fixture(scope="module", params=["tiny", "real"])
def vocabulary(request: pytest.FixtureRequest, real_vocabulary: Vocabulary) -> Vocabulary:
    return TINY if request.param == "tiny" else real_vocabulary


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_draft(suite: Path, vocabulary: Vocabulary, draft: str) -> None:
    outcome = run(vocabulary, suite, draft)
    assert outcome.failed == []
    assert (outcome.passed.total(), outcome.refused.total()) == COUNTS[draft]

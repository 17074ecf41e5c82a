"""How many answers of sparkle-tiny are valid under the tests' schemas, and what fails of the official suite.

The answers are drawn at a temperature of 1.5, with drafts in every pass; all must end and be valid. Of the
suite nothing may fail.
Run from the repository's root: python -m bench.schemas [--keep]
"""

from __future__ import annotations

import argparse

from bench.record import record
from tests.engine.schema_answers import answers_to
from tests.text.matched import TINY
from tests.text.official_suite import DRAFTS, archive, run
from tests.text.schema_examples import examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="append rows to bench/results")
    keep = parser.parse_args().keep
    written = list(answers_to(examples()))
    ended = [one for one in written if one.ended]
    valid = [one for one in ended if one.valid]
    print(f"{len(written)} schemas: {len(ended)} answers ended, {len(valid)} of them are valid")
    for one in written:
        if not one.ended:
            print(f"  not ended: {one.example.name}")
    path = archive()
    assert path is not None, "no source archive of jsonschema: `make test` downloads it"
    outcomes = {draft: run(TINY, path, draft) for draft in DRAFTS}
    for draft, outcome in outcomes.items():
        counts = outcome.passed.total(), outcome.refused.total(), len(outcome.failed)
        print(f"{draft}: {counts[0]} passed, {counts[1]} refused, {counts[2]} failed")
    if keep:
        share, failed = len(valid) / len(ended), sum(len(one.failed) for one in outcomes.values())
        complete = len(ended) / len(written)
        record("schemas_valid_share", share, "of answers that ended", 1.0, (share, share), file="shapes")
        record("schemas_ended_share", complete, "of answers", 1.0, (complete, complete), file="shapes")
        record("suite_failed", failed, "cases", 0.0, (failed, failed), file="shapes")


if __name__ == "__main__":
    main()

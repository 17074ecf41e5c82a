"""Sends random schemas, or random bytes as grammars, for so many minutes, as the tests' fuzz does.

Nothing may crash or hang, each answer must be valid, and memory must not grow: this process compiles and
walks what has passed its trial. Run from the repository's root:

    python -m bench.fuzz_grammars --kind schemas --minutes 10
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sparkle.text.grammar_trial import GrammarTrial, TrialLimits
from tests.text.matched import TINY
from tests.text.random_schemas import larks, patterns, schemas
from tests.text.test_grammar_fuzz import CHECKPOINT, SLOW, try_grammars, valid_or_refused

ROUND = settings(
    max_examples=500, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=SLOW
)
SLOW_S = 10.0
"""What takes longer is told: a trial has 2 s, and a walk 120 tokens."""


class Fuzz:
    """What was sent, and how long the slowest took."""

    def __init__(self, trial: GrammarTrial) -> None:
        self._trial = trial
        self.sent = 0
        self.slowest_s = 0.0

    def schemas(self) -> None:
        """A round of random schemas."""

        @ROUND
        @given(schema=schemas(max_leaves=25))
        def send(schema: object) -> None:
            self._timed(lambda: valid_or_refused(self._trial, schema))

        send()

    def bytes(self) -> None:
        """A round of random grammars, patterns and bytes."""

        @ROUND
        @given(lark=larks(), pattern=patterns(), octets=st.binary(max_size=200))
        def send(lark: str, pattern: str, octets: bytes) -> None:
            self._timed(lambda: try_grammars(self._trial, lark, pattern, octets))

        send()

    def _timed(self, send: Callable[[], None]) -> None:
        started_s = time.monotonic()
        send()
        self.sent += 1
        took_s = time.monotonic() - started_s
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s > SLOW_S:
            print(f"{took_s:.0f} s for one", flush=True)


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", choices=("schemas", "bytes"), required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    until_s = time.monotonic() + 60 * options.minutes
    limits = TrialLimits(compile_s=2.0)
    with GrammarTrial(CHECKPOINT, rows=TINY.rows, end_tokens=TINY.end_tokens, limits=limits) as trial:
        fuzz = Fuzz(trial)
        run = fuzz.schemas if options.kind == "schemas" else fuzz.bytes
        sizes = list[int]()
        while time.monotonic() < until_s:
            run()
            sizes.append(resident_bytes())
    mib = [size / 2**20 for size in sizes]
    print(f"{fuzz.sent} sent, none crashed; the slowest took {fuzz.slowest_s:.1f} s")
    print(
        f"resident {mib[0]:.0f} MiB after the first round, {mib[-1]:.0f} at the end, {max(mib):.0f} at most"
    )


if __name__ == "__main__":
    main()

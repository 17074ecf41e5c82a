"""Times finding what is cached of the longest prompt: 262,144 tokens. Python on a CPU, no model.

    python -m bench.prefix_match [--record]

`prefix_match_262k_ms`: the names of all blocks and the deepest of 96 checkpoints, once a job.
`prefix_admission_262k_ms`: its admission, with all of its pages shared.
Medians, 10th and 90th percentile, of the process's own time: others may be on its core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from bench.record import record
from bench.simulated_gpu import percentile
from sparkle.engine.holdings import Holdings
from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass

PROMPT_TOKENS, PAGE_TOKENS, SLOTS, ROUNDS = 262_144, 64, 100, 31


def request(name: str, prompt: tuple[int, ...]) -> Request:
    """One that asks for a short answer."""
    return Request(
        id=name,
        prompt=prompt,
        max_answer_tokens=64,
        stop_tokens=frozenset(),
        priority=PriorityClass.P4,
        arrived_s=0.0,
        tenant="tenant",
    )


def cached(holdings: Holdings, prompt: tuple[int, ...]) -> None:
    """Checkpoints of other prompts, and one of nearly all of this one."""
    others = [tuple(range(number, number + 1024)) for number in range(95)]
    for number, tokens in enumerate((*others, prompt[:-200])):
        one = request(str(number), tokens)
        holdings.name(one)
        assert holdings.admit(one)
        one.computed = len(tokens)
        holdings.release(one, is_sound=True)
    holdings.upkeep()


def times_ms(holdings: Holdings, prompt: tuple[int, ...]) -> Iterator[tuple[float, float]]:
    """Of a request with this prompt, and of its admission."""
    for number in range(ROUNDS):
        one = request(f"again {number}", prompt)
        started_s = time.process_time()
        holdings.name(one)
        assert holdings.cached_tokens(one) == len(prompt) - 200
        matched_s = time.process_time()
        holdings.begin(0.0)
        assert holdings.admit(one)
        yield 1e3 * (matched_s - started_s), 1e3 * (time.process_time() - matched_s)
        holdings.release(one, is_sound=False)
        holdings.upkeep()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results")
    options = parser.parse_args()
    prompt = tuple(number * 7919 % 248_320 for number in range(PROMPT_TOKENS))
    holdings = Holdings(num_slots=SLOTS, num_pages=20_000, page_tokens=PAGE_TOKENS, cache_s=600.0)
    cached(holdings, prompt)
    matched, admitted = zip(*times_ms(holdings, prompt), strict=True)
    for case, found in (("prefix_match_262k_ms", matched), ("prefix_admission_262k_ms", admitted)):
        low, median, high = (percentile(found, percent) for percent in (10, 50, 90))
        print(f"{case:26}{median:8.3f} ms  ({low:.3f} to {high:.3f})", flush=True)
        if options.record:
            record(case, median, "ms", None, (low, high), file="engine")


if __name__ == "__main__":
    main()

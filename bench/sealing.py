"""What end-to-end encryption adds: to seal and to open a chunk and a job of 262,144 tokens, beside the codec.

Run from the repository's root: python -m bench.sealing
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from bench.broker import chunk
from bench.record import record
from sparkle.queue.tenant_key import SECRET_BYTES, TenantKey
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.message import Message

ROUNDS = 15
US_PER_S = 1e6
PLACE = "reply.acme.01a2b3c4-0000-7000-8000-000000000000"
LONG_PROMPT = "An alert like many others before it: " * (1_048_576 // 37)
"""262,144 tokens of four letters."""


def took_us(step: Callable[[], object], times: int) -> float:
    """Microseconds that one of so many calls takes."""
    started_s = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - started_s) / times * US_PER_S


def measure(message: Message, times: int) -> dict[str, list[float]]:
    """Microseconds of each step, by round; steps take turns."""
    key = TenantKey("acme", "k1", os.urandom(SECRET_BYTES))
    plain = encode(message)
    sealed = key.seal(PLACE, plain)
    steps: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(message),
        "seal": lambda: key.seal(PLACE, plain),
        "open": lambda: key.open(PLACE, sealed),
        "decode": lambda: decode(plain, type(message)),
    }
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            rounds[name].append(took_us(step, times))
    return rounds


def main() -> None:
    """Measure and print; with --record keep rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    keep: bool = parser.parse_args().record
    job = Job(prompt=LONG_PROMPT, tenant="acme", region="eu")
    for name, message, times in (("chunk", chunk(new_job_id(), 0, 0), 2_000), ("long_job", job, 10)):
        for step, rounds in measure(message, times).items():
            value, spread = statistics.median(rounds), (min(rounds), max(rounds))
            print(f"{name:10}{step:8}{value:12.1f} µs  ({spread[0]:.1f} to {spread[1]:.1f})")
            if keep and step in ("seal", "open"):
                record(f"{step}_{name}_us", value, "us", None, spread, file="broker")


if __name__ == "__main__":
    main()

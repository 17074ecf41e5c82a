"""From the start of an engine process to the first token of its first answer.

`python -m bench.start --model DIR --kernel-cache DIR`, after `sparkle kernels build` with the same two. The
phases of each start are on stderr, as the process logs them; rounds after the first find the weights in the
page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench.record import row
from sparkle.engine.client import EngineProcess
from sparkle.engine.frames import Accepted, Delta, Submit
from sparkle.engine.settings import Device, EngineSettings
from sparkle.schemas import codec
from sparkle.schemas.job import Job

CASE = "start_27b"


@dataclass(frozen=True, slots=True)
class Start:
    """One start, in seconds from the creation of the process."""

    ready_s: float
    answer_s: float


async def start_once(model: Path, settings: EngineSettings) -> Start:
    """Start the engine, ask one short question, end it at the first token."""
    began_s = time.monotonic()
    engine = EngineProcess(model, settings)
    try:
        await engine.start()
        ready_s = time.monotonic() - began_s
        job = Job(prompt_tokens=list(range(1, 33)), max_tokens=4)
        await engine.submit(Submit(job=job.id, payload=codec.encode(job)))
        async for frame in engine.frames:
            assert isinstance(frame, Accepted | Delta), "the job was refused"
            if isinstance(frame, Delta):
                break
        return Start(ready_s, time.monotonic() - began_s)
    finally:
        await engine.stop()


def main() -> None:
    """Print a line a round, then a row for bench/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kernel-cache", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", default="NVIDIA H200")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    settings = EngineSettings(device=Device.CUDA, kernel_cache=arguments.kernel_cache)
    starts: list[Start] = []
    for _ in range(arguments.rounds):
        starts.append(asyncio.run(start_once(arguments.model, settings)))
        print(f"ready after {starts[-1].ready_s:.2f} s, first token after {starts[-1].answer_s:.2f} s")
    times = sorted(start.answer_s for start in starts)
    made = row(
        CASE,
        times[len(times) // 2],
        "s",
        None,
        (times[0], times[-1]),
        gpu=arguments.gpu,
        commit=arguments.commit,
    )
    print(json.dumps(made))


if __name__ == "__main__":
    main()

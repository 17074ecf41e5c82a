"""What drafts bring on the CPU: the demo's prompts on sparkle-tiny, with the engine's default and without.

    python -m bench.drafts_on_cpu [--rounds 4] [--draft-model mtp]

Seconds of processor time of one thread, which other programs on the machine disturb less than the clock.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median

from sparkle.engine.assemble import Assembly, assemble
from sparkle.engine.frames import Finished
from sparkle.engine.plan import MAX_DRAFT_TOKENS
from sparkle.engine.settings import NO_DRAFT_MODEL, Device, EngineSettings, default_model
from sparkle.producers.demo_prompts import demo_prompts
from sparkle.schemas.job import Job, Sampling

BATCHES = (1, 4, 8)
MAX_TOKENS = 128
SAMPLINGS = {"greedy": Sampling(temperature=0.0), "temperature 1.2": Sampling(temperature=1.2, seed=5)}


@dataclass(frozen=True)
class Run:
    """What some answers took."""

    busy_s: float
    passes: int
    drafted: int
    accepted: int


def answer(assembly: Assembly, jobs: list[Job], batch: int) -> Run:
    """All of them, so many at once."""
    engine, waiting = assembly.engine, list(jobs)
    running = passes = drafted = accepted = 0
    started_s = time.process_time()
    while waiting or engine.has_work:
        for job in waiting[: batch - running]:
            engine.submit(job, assembly.prompts.build(job))
        waiting, running = waiting[batch - running :], min(batch, running + len(waiting))
        passes += 1
        for frame in engine.step():
            if isinstance(frame, Finished):
                running -= 1
                drafted += frame.drafted_tokens
                accepted += frame.accepted_tokens
    return Run(time.process_time() - started_s, passes, drafted, accepted)


def jobs(sampling: Sampling, batch: int) -> list[Job]:
    """The demo's four prompts, each as often as fills two batches."""
    changes = {"max_tokens": MAX_TOKENS, "sampling": sampling}
    return [
        Job.model_validate({**prompt.job.model_dump(exclude={"id"}), **changes})
        for prompt in demo_prompts()
        for _ in range(max(1, batch // 2))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--draft-model", default=NO_DRAFT_MODEL, help="as the engine's setting")
    arguments = parser.parse_args()
    rounds, draft_model = arguments.rounds, arguments.draft_model
    settings = {
        tokens: EngineSettings(device=Device.CPU, threads=1, draft_tokens=tokens, draft_model=draft_model)
        for tokens in (0, MAX_DRAFT_TOKENS)
    }
    # one engine for all: what it learns of one batch is what the next one begins with
    engines = {tokens: assemble(default_model(), of) for tokens, of in settings.items()}
    for name, sampling in SAMPLINGS.items():
        for batch in BATCHES:
            runs = [
                {tokens: answer(engine, jobs(sampling, batch), batch) for tokens, engine in engines.items()}
                for _ in range(rounds)
            ]
            gains = sorted(one[0].busy_s / one[MAX_DRAFT_TOKENS].busy_s for one in runs)
            for tokens in engines:
                last = runs[-1][tokens]
                print(
                    f"{name}, {batch} at once, draft_tokens {tokens:2}: "
                    f"{median(one[tokens].busy_s for one in runs):5.2f} s, {last.passes} passes, "
                    f"{last.drafted} drafted, {last.accepted} accepted"
                )
            print(f"  {median(gains):.2f} times as fast ({gains[0]:.2f} to {gains[-1]:.2f})", flush=True)


if __name__ == "__main__":
    main()

"""`python -m sparkle.engine.kernel_build --model DIR`: compiles every kernel that the engine launches.

By launching them: the engine is put together as for serving, and reads prompts of all kinds. Knows no queue.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from sparkle.engine.arguments import engine_parser, settings_of
from sparkle.engine.assemble import Assembly, assemble
from sparkle.engine.settings import UNUSABLE_CODE, Device, EngineSettings
from sparkle.errors import CheckpointError, ConfigError
from sparkle.kernels import ops
from sparkle.quiet.process import keep_content_in
from sparkle.schemas.job import Job, Sampling
from sparkle.schemas.shape import RegexShape
from sparkle.text.shape_compiler import ShapeCompiler

PROMPT_TOKENS = (1, 20, 40, 80, 300, 1100)
"""Lengths that kernels are compiled for apart; the last is read outside the graphs."""
SAMPLINGS = (Sampling(temperature=0.0, logprobs=2), Sampling(seed=1, repetition_penalty=1.1))


def main() -> None:
    """Build and say how many and how long. A bad model or setting is one sentence and exit code 2."""
    keep_content_in()
    arguments = engine_parser("sparkle.engine.kernel_build", __doc__).parse_args()
    try:
        settings = dataclasses.replace(settings_of(arguments), device=Device.CUDA)
        started_s = time.monotonic()
        count = ops.CompileCount()
        build(assemble(arguments.model, settings), arguments.model)
    except (CheckpointError, ConfigError) as error:
        sys.stderr.write(f"sparkle kernels build: {error}\n")
        sys.exit(UNUSABLE_CODE)
    sys.stdout.write(f"{summary(count, settings, time.monotonic() - started_s)}\n")


def build(assembly: Assembly, model: Path) -> None:
    """Answer prompts until every kernel was launched; the graphs have launched theirs already.

    `model`: the directory that the engine was put together from.
    """
    config = assembly.config
    with ShapeCompiler(
        model, assembly.tokenizer, rows=config.vocab_size, end_tokens=config.end_tokens
    ) as shapes:
        for job in (*_jobs(assembly), *_shaped_jobs()):
            assembly.engine.submit(job, job.prompt_tokens or [], shape=shapes.shape_of(job))
            while assembly.engine.has_work:
                assembly.engine.step()


def summary(count: ops.CompileCount, settings: EngineSettings, took_s: float) -> str:
    """One line for people."""
    place = "Triton's own cache" if settings.kernel_cache is None else settings.kernel_cache
    return (
        f"{count.needed} kernels in {place}: {count.compiled} compiled, {count.found} had been there; "
        f"{took_s:.1f} s in all"
    )


def _jobs(assembly: Assembly) -> Iterator[Job]:
    """Prompts of each length, and some that are read in chunks, where the context allows them."""
    whole = assembly.sizes.pass_tokens
    # behind seven chunks attention has four parts to join, each of which it does in another way
    lengths = (*PROMPT_TOKENS, *(chunks * whole + PROMPT_TOKENS[-1] for chunks in (1, 7)))
    for token, (length, sampling) in enumerate(product(lengths, SAMPLINGS)):
        if length + 2 > assembly.context_tokens:
            break
        # each begins with another token: none finds what is cached of those before it
        yield Job(prompt_tokens=[token] * length, max_tokens=2, sampling=sampling)


def _shaped_jobs() -> Iterator[Job]:
    """Answers that are drawn under masks, in every way to draw."""
    digits = RegexShape(type="regex", pattern="[0-9]{9}")
    for sampling in (*SAMPLINGS, Sampling()):
        yield Job(prompt_tokens=[0], max_tokens=3, sampling=sampling, response_format=digits)


if __name__ == "__main__":
    main()

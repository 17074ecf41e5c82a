"""Decoding with width control beside decoding without drafts, over the shapes of Qwen3.8-27B on one H200.

    python -m bench.drafts_on_gpu --commit $(git rev-parse --short HEAD) [--batches 1 8 32] [--chances 0 0.9]

Scheduler, draft choice, width control and runner are the engine's, with the graphs of all its buckets; text
and queue are left out. The weights are random, so whether a guess is right is given: by chance, all alike.
Greedy answers behind short prompts, where a pass takes least and what drafts cost weighs most. Each figure is
tokens a second as a multiple of those of a runner that knows no drafts; the spread is that of four parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch

from bench.draft_models import NAMES, draft_model
from bench.engine_model import CUDA, PAGE_TOKENS, Loaded
from bench.gpu_timing import Figure, print_figures
from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.combined import Combined
from sparkle.drafting.width import WidthControl
from sparkle.engine.buckets import WIDTHS, Bucket, buckets_for
from sparkle.engine.draft_choice import DraftChoice
from sparkle.engine.draw_state import DrawState
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.pass_costs import PassCosts
from sparkle.engine.plan import MAX_DRAFT_TOKENS, PassPlan, PassResult, Span
from sparkle.engine.request import Request
from sparkle.engine.sampler import Sampler
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.verify_pass import DraftModel
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from sparkle.schemas.job import Sampling
from sparkle.schemas.priority import PriorityClass

SLOTS = 32
PROMPT_TOKENS = 256
ANSWER_TOKENS = 8_000
PASS_TOKENS = 8_448
WARM_PASSES, PASSES, PARTS = 20, 400, 4
GREEDY = Sampling(temperature=0.0)


@dataclass(slots=True)
class GivenChance:
    """Decides which guesses are right."""

    chance: float
    random: Random = dataclasses.field(default_factory=lambda: Random(1))

    def count(self, span: Span) -> int:
        """Tokens that a pass keeps of a span with a draft."""
        right = 0
        while right < len(span.draft) and self.random.random() < self.chance:
            right += 1
        return 1 + right


def as_given(plan: PassPlan, result: PassResult) -> PassResult:
    """The result as if what counts had been guessed, and what comes behind it guessed wrong."""
    drawn = result.by_request
    guessed: dict[str, tuple[int, ...]] = {}
    for span in plan.spans:
        if span.guesses:
            tokens = [one.token for one in drawn[span.request]]
            wrong = tokens[-1] ^ 1
            guessed[span.request] = (*tokens[:-1], *[wrong] * len(span.draft))[: len(span.draft)]
    return dataclasses.replace(result, guessed=guessed)


class Decoding:
    """Conversations that are all being written, by one runner."""

    def __init__(self, runner: GpuRunner, drafts: DraftChoice, *, batch: int, vocab_size: int) -> None:
        pages = SLOTS * -(-(PROMPT_TOKENS + ANSWER_TOKENS) // PAGE_TOKENS)
        self._scheduler = Scheduler(
            num_slots=SLOTS,
            num_pages=pages,
            page_tokens=PAGE_TOKENS,
            pass_tokens=PASS_TOKENS,
            chunk_tokens=PASS_TOKENS,
        )
        self._runner, self._drafts = runner, drafts
        self._states: dict[str, DrawState] = {}
        random = Random(batch)
        for number in range(batch):
            prompt = tuple(random.randrange(vocab_size) for _ in range(PROMPT_TOKENS))
            name = f"conversation-{number}"
            self._scheduler.add(
                Request(
                    id=name,
                    prompt=prompt,
                    max_answer_tokens=ANSWER_TOKENS,
                    stop_tokens=frozenset(),
                    priority=PriorityClass.P1,
                    arrived_s=0.0,
                )
            )
            self._states[name] = DrawState(name, GREEDY, number, prompt, vocab_size, CUDA)
            drafts.start(name, prompt)
        # until all prompts are read
        while len(self._pass()) < batch:
            pass

    def run(self, passes: int) -> float:
        """Tokens a second."""
        started_s = time.perf_counter()
        tokens = sum(sum(self._pass().values()) for _ in range(passes))
        return tokens / (time.perf_counter() - started_s)

    def _pass(self) -> dict[str, int]:
        """Tokens written of each conversation."""
        plan = self._scheduler.schedule(0.0, self._drafts.choose)
        started_s = time.perf_counter()
        result = as_given(plan, self._runner.run(plan, self._states))
        took_s = time.perf_counter() - started_s
        written = self._scheduler.apply(result)
        self._drafts.passed(plan, written, 1000 * took_s)
        for request, drawn in result.by_request.items():
            self._drafts.add(request, [one.token for one in drawn])
        return {request: len(drawn) for request, drawn in result.by_request.items()}


class Rig:
    """The model, and a runner with drafts and one without."""

    def __init__(self, name: str) -> None:
        config = shape_27b()
        weights = random_fp8_weights(config, CUDA, seed=7)
        self._model = Loaded.of(config, weights, slots=SLOTS, max_tokens=PROMPT_TOKENS + ANSWER_TOKENS)
        self._given = GivenChance(0.0)
        self.vocab_size = config.vocab_size
        helper = draft_model(name, self._model, weights, slots=SLOTS)
        self.plain = self._runner(None, (1,))
        started_s = time.perf_counter()
        self.drafting = self._runner(helper, WIDTHS)
        torch.cuda.synchronize()
        captured_s = time.perf_counter() - started_s
        self.drafting.time_passes()
        timed_s = time.perf_counter() - started_s - captured_s
        buckets = len(self.drafting.pass_ms)
        print(
            f"{name}: {buckets} graphs captured in {captured_s:.2f} s, timed in {timed_s:.2f} s", flush=True
        )
        print_costs(self.drafting.pass_ms)

    def tokens_s(self, batch: int, chance: float | None, passes: int) -> list[float]:
        """Tokens a second of each part, with so right guesses; None without drafts."""
        self._given.chance = chance or 0.0
        self._given.random.seed(1)
        runner = self.plain if chance is None else self.drafting
        decoding = Decoding(
            runner, choice_of(runner, drafts=chance is not None), batch=batch, vocab_size=self.vocab_size
        )
        decoding.run(WARM_PASSES if chance is None else 1)
        return [decoding.run(passes // PARTS) for _ in range(PARTS)]

    def _runner(self, helper: DraftModel | None, widths: Sequence[int]) -> GpuRunner:
        return GpuRunner(
            self._model.decoder,
            self._model.cache,
            Sampler(self._model.config.vocab_size),
            num_slots=SLOTS,
            max_pages=self._model.page_tables(1).shape[1],
            widths=widths,
            helper=helper,
            given_count=None if helper is None else self._given.count,
        )


def choice_of(runner: GpuRunner, *, drafts: bool) -> DraftChoice:
    """As the engine makes it, without copies."""
    most = MAX_DRAFT_TOKENS if drafts else 0
    acceptance = Acceptance(most)
    buckets = tuple(runner.pass_ms) or buckets_for(SLOTS, (1,))
    return DraftChoice(
        Combined({}),
        WidthControl(PassCosts(buckets, runner.pass_ms), acceptance),
        acceptance,
        draft_tokens=most,
        draft_model=runner.draft_model,
    )


def print_costs(pass_ms: Mapping[Bucket, float]) -> None:
    """A line a width."""
    for width, guesses in sorted({(bucket.width, bucket.guesses) for bucket in pass_ms}):
        found = sorted(
            (bucket.sequences, ms)
            for bucket, ms in pass_ms.items()
            if (bucket.width, bucket.guesses) == (width, guesses)
        )
        costs = ", ".join(f"{sequences}: {ms:.2f}" for sequences, ms in found)
        print(f"  width {width}{' guessed' if guesses else ''}, ms by sequences: {costs}", flush=True)


def figures(rig: Rig, name: str, options: argparse.Namespace) -> Iterator[Figure]:
    """Every batch with every chance."""
    for batch in options.batches:
        without = rig.tokens_s(batch, None, options.passes // 2)
        plain = sum(without) / PARTS
        print(
            f"{batch} without drafts: {plain:.1f} tokens/s, {1e3 * batch / plain:.2f} ms a pass", flush=True
        )
        for chance in options.chances:
            parts = sorted(rate / plain for rate in rig.tokens_s(batch, chance, options.passes))
            yield Figure(
                case=f"drafts_gain_{name}_{batch}x_chance{chance:g}",
                value=sum(parts) / PARTS,
                unit="times",
                floor=None,
                spread=(parts[0], parts[-1]),
            )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    parser.add_argument("--draft-model", choices=NAMES, default="mtp")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 8, 32], help="conversations at once")
    parser.add_argument("--chances", type=float, nargs="*", default=[0.0, 0.5, 0.9], help="of a guess")
    parser.add_argument("--passes", type=int, default=PASSES, help="of each figure")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    rig = Rig(options.draft_model)
    print_figures(figures(rig, options.draft_model, options), commit=options.commit)


if __name__ == "__main__":
    main()

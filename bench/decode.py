"""Times decoding with drafts over the shapes of Qwen3.8-27B on one H200: tokens a second by the wall clock.

    python -m bench.decode --commit $(git rev-parse --short HEAD) [--only decode_1x33k_kept5_tok_s …]
    python -m bench.decode --commit … --acceptance 9.5 --width 16 --draft-model dflash2 --sequences 1

Each pass is the engine's: its runner plans, guesses, checks, draws, accepts and follows, and reads the tokens
back. The weights are random, so how many tokens a pass keeps is not found but given: drawn with this mean.
Greedy answers behind about 33,000 tokens. The floor is the rate at which passes would write as much that take
no longer than to read weights, caches and states once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.draft_models import NAMES, draft_model
from bench.engine_model import CUDA, Loaded
from bench.gpu_timing import READ_BYTES_PER_S, Figure, print_figures
from bench.kept_counts import kept_counts
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.plan import TO_GUESS, PassPlan, Span
from sparkle.engine.sampler import Sampler
from sparkle.engine.verify_pass import DraftModel
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from sparkle.schemas.job import Sampling

CONTEXT_TOKENS = 33_000
SEQUENCES = 8
WARM_PASSES, PASSES = 5, 200
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How much is decoded at once, and what guesses."""

    sequences: int
    draft_model: str
    width: int
    """Rows of a sequence in a pass: its last token and the guesses behind it."""
    kept: float
    """Tokens that a pass writes of a sequence, on average."""


CASES = {
    "decode_1x33k_kept3_tok_s": Case(sequences=1, draft_model="mtp", width=4, kept=3.0),
    "decode_8x33k_kept3_tok_s": Case(sequences=8, draft_model="mtp", width=4, kept=3.0),
    "decode_1x33k_kept5_tok_s": Case(sequences=1, draft_model="dflash2", width=8, kept=5.0),
    "decode_1x33k_kept9.5_tok_s": Case(sequences=1, draft_model="dflash2", width=16, kept=9.5),
    "decode_8x33k_kept5_tok_s": Case(sequences=8, draft_model="dflash2", width=8, kept=5.0),
}


@dataclass(slots=True)
class Conversation:
    """One answer that is being written."""

    name: str
    slot: int
    pages: tuple[int, ...]
    state: DrawState
    computed: int = 0
    last_token: int = 1

    def span(self, width: int) -> Span:
        """Its part of the next pass, the first of which makes the slot its own."""
        draft = (TO_GUESS,) * (width - 1)
        return Span(
            request=self.name,
            slot=self.slot,
            start=self.computed,
            tokens=(self.last_token, *draft),
            pages=self.pages,
            draws=True,
            fresh=not self.computed,
            draft=draft,
        )


class Decoding:
    """A runner with the graphs of one case, in the middle of its answers."""

    def __init__(self, model: Loaded, helper: DraftModel, case: Case) -> None:
        passes = 1 + WARM_PASSES + PASSES
        counts = iter(kept_counts(case.kept, case.width, passes * case.sequences, seed=11))
        self._case = case
        self._runner = GpuRunner(
            model.decoder,
            model.cache,
            Sampler(model.config.vocab_size),
            num_slots=case.sequences,
            max_pages=model.page_tables(1).shape[1],
            helper=helper,
            given_count=lambda _: next(counts),
            buckets=(Bucket(case.sequences, case.width, guesses=True),),
        )
        self._conversations = [
            Conversation(
                name=f"conversation-{slot}",
                slot=slot,
                pages=tuple(int(page) for page in table),
                state=DrawState("", GREEDY, slot, (), model.config.vocab_size, model.cache.keys.device),
            )
            for slot, table in enumerate(model.page_tables(case.sequences).cpu())
        ]
        self.run_pass()
        # as if a prompt had been read
        model.fill()
        for conversation in self._conversations:
            for part in helper.slot_state(conversation.slot):
                part.normal_()
            conversation.computed = CONTEXT_TOKENS

    def run_pass(self) -> int:
        """Tokens written."""
        spans = tuple(one.span(self._case.width) for one in self._conversations)
        result = self._runner.run(PassPlan(spans=spans), {one.name: one.state for one in self._conversations})
        drawn = result.by_request
        for one in self._conversations:
            one.computed += len(drawn[one.name])
            one.last_token = drawn[one.name][-1].token
        return len(result.drawn)


def measure(name: str, case: Case, model: Loaded, helper: DraftModel) -> Figure:
    """Tokens a second over all passes; the spread is that of single passes that kept the mean."""
    decoding = Decoding(model, helper, case)
    for _ in range(WARM_PASSES):
        decoding.run_pass()
    torch.cuda.synchronize()
    tokens, times_s = 0, list[float]()
    started_s = before_s = time.perf_counter()
    for _ in range(PASSES):
        tokens += decoding.run_pass()
        now_s = time.perf_counter()
        times_s.append(now_s - before_s)
        before_s = now_s
    torch.cuda.synchronize()
    took_s = time.perf_counter() - started_s
    times_s.sort()
    written = case.sequences * case.kept
    print(f"{name}: {1e3 * took_s / PASSES:.2f} ms a pass, {tokens / PASSES / case.sequences:.2f} kept")
    floor_s = model.pass_bytes(case.sequences, CONTEXT_TOKENS) / READ_BYTES_PER_S
    return Figure(
        case=name,
        value=tokens / took_s,
        unit="tok/s",
        floor=written / floor_s,
        spread=(written / times_s[PASSES * 9 // 10], written / times_s[PASSES // 10]),
    )


def figures(cases: dict[str, Case]) -> Iterator[Figure]:
    """Of each case, those of one draft model after those of the other: each takes memory."""
    config = shape_27b()
    weights = random_fp8_weights(config, CUDA, seed=7)
    # the longest answers of all cases fit behind the context
    longest = CONTEXT_TOKENS + 16 * (WARM_PASSES + PASSES + 1)
    slots = max(case.sequences for case in cases.values())
    model = Loaded.of(config, weights, slots=slots, max_tokens=longest)
    for name in dict.fromkeys(case.draft_model for case in cases.values()):
        helper = draft_model(name, model, weights, slots=SEQUENCES)
        for title, case in cases.items():
            if case.draft_model == name:
                yield measure(title, case, model, helper)


def chosen_cases(options: argparse.Namespace) -> dict[str, Case]:
    """What the command line asks for."""
    if options.acceptance is None:
        return {name: case for name, case in CASES.items() if not options.only or name in options.only}
    case = Case(
        sequences=options.sequences,
        draft_model=options.draft_model,
        width=options.width,
        kept=options.acceptance,
    )
    return {f"decode_{case.sequences}x33k_kept{case.kept:g}_tok_s": case}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    parser.add_argument("--only", nargs="*", default=[], help="cases, all where it is left out")
    parser.add_argument("--acceptance", type=float, help="kept tokens a pass: one case of one's own")
    parser.add_argument("--width", type=int, default=8, help="of that case: rows of a sequence")
    parser.add_argument("--sequences", type=int, default=1, help="of that case")
    parser.add_argument("--draft-model", choices=NAMES, default="dflash2", help="of that case")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    print_figures(figures(chosen_cases(options)), commit=options.commit)


if __name__ == "__main__":
    main()

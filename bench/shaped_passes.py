"""What shapes add to passes of 8 conversations with 15 guesses each, over the shapes of Qwen3.8-27B.

On one H200, by the wall clock: passes with and passes without take turns, in blocks, in one runner. The
weights are random, so which guesses are right is given: DFlash guesses as ever, but what is put into the pass
are the next tokens of answers under schemas of 30 properties, with the real vocabulary. So each of 128 rows
has its mask, made while the pass runs. What is done of a shape between passes counts too: asking what is
forced, accepting. Passes beside which an answer begins are told apart: a grammar of which nothing was asked
yet is slow. Run from the repository's root:

    python -m bench.shaped_passes --commit $(git rev-parse --short HEAD)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.decode import CONTEXT_TOKENS, GREEDY
from bench.draft_models import draft_model
from bench.engine_model import CUDA, Loaded
from bench.gpu_timing import Figure, print_figures
from bench.masks import CONVERSATIONS, DRAFT_TOKENS, ROWS, SAMPLING, Conversation, Words
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.plan import TO_GUESS, PassPlan, Span
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import EngineSettings
from sparkle.engine.shape_masks import ShapeMasks
from sparkle.engine.transfer import to_device
from sparkle.engine.verify_pass import DraftModel
from sparkle.kernels import ops
from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from sparkle.schemas.job import Sampling

WIDTH = 1 + DRAFT_TOKENS
BLOCKS, WARM_PASSES, PASSES = 6, 5, 40
"""Of each kind so many blocks; the first passes of a block do not count."""
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLING}
MAX_ADDED_MS = 0.3, 1.0
"""Half of the passes, and 99 of a hundred."""


class GivenGuesses:
    """A DraftModel that takes its time, and then guesses what is given."""

    def __init__(self, helper: DraftModel) -> None:
        self._helper = helper
        self.name = helper.name
        self._guesses = torch.zeros(CONVERSATIONS, DRAFT_TOKENS, dtype=torch.int64, device=CUDA)

    def give(self, guesses: Sequence[Sequence[int]]) -> None:
        """Of each conversation, for the next pass; behind the last one there is none that is right."""
        numbers = [token for one in guesses for token in (*one, *[0] * (DRAFT_TOKENS - len(one)))]
        self._guesses.copy_(to_device(numbers, torch.int64, CUDA).view_as(self._guesses))

    def slot_state(self, slot: int) -> Sequence[Tensor]:
        """See Helper."""
        return self._helper.slot_state(slot)

    def propose(self, batch: VerifyBatch, *, count: int, draws: Draws | None) -> Tensor:
        """See Helper."""
        return torch.where(self._helper.propose(batch, count=count, draws=draws) < 0, 0, self._guesses)

    def follow(
        self,
        batch: VerifyBatch | PromptBatch,
        outputs: Tensor,
        following: Tensor,
        *,
        contexts: Tensor,
        kept: Tensor,
    ) -> None:
        """See Helper."""
        self._helper.follow(batch, outputs, following, contexts=contexts, kept=kept)

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """See DraftModel."""
        return self._helper.verify(batch, cache)

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """See DraftModel."""
        return self._helper.read(batch, cache)


@dataclass(slots=True)
class Place:
    """What the runner knows of a conversation: its shape's answer is another one than the one it writes."""

    answer: Conversation
    plain: DrawState
    slot: int
    pages: tuple[int, ...]
    computed: int = 0
    last_token: int = 1

    def span(self) -> Span:
        """Its part of the next pass, the first of which makes the slot its own."""
        draft = (TO_GUESS,) * DRAFT_TOKENS
        return Span(
            request=self.answer.name,
            slot=self.slot,
            start=self.computed,
            tokens=(self.last_token, *draft),
            pages=self.pages,
            draws=True,
            fresh=not self.computed,
            draft=draft,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """What passes took."""

    steady: list[float] = field(default_factory=list[float])
    beginnings: list[float] = field(default_factory=list[float])
    """Of those in front of which, or behind which, an answer begins."""


class ShapedPasses:
    """A runner with the one graph that is needed, in the middle of its answers."""

    def __init__(self, model: Loaded, helper: DraftModel, words: Words, sampling: Sampling) -> None:
        self._helper = GivenGuesses(helper)
        masks = ShapeMasks(
            rows=ROWS,
            end_tokens=words.ends,
            most_masks=CONVERSATIONS * WIDTH,
            threads=EngineSettings().mask_threads(),
            device=CUDA,
        )
        self._runner = GpuRunner(
            model.decoder,
            model.cache,
            Sampler(ROWS, masks),
            num_slots=CONVERSATIONS,
            max_pages=model.page_tables(1).shape[1],
            helper=self._helper,
            buckets=(Bucket(CONVERSATIONS, WIDTH, guesses=True),),
        )
        tables = model.page_tables(CONVERSATIONS).cpu()
        self._places = [
            Place(
                answer=answer,
                plain=DrawState(answer.name, sampling, slot, (), ROWS),
                slot=slot,
                pages=tuple(int(page) for page in tables[slot]),
            )
            for slot, answer in enumerate(words.conversations(sampling))
        ]
        self.run_pass(shaped=False)
        # as if a prompt had been read
        model.fill()
        for place in self._places:
            for part in helper.slot_state(place.slot):
                part.normal_()
            place.computed = CONTEXT_TOKENS

    def run_pass(self, *, shaped: bool) -> bool:
        """The runner's, and what else a shape asks for. Returns whether an answer begins behind it."""
        self._helper.give([place.answer.ahead for place in self._places])
        states = {place.answer.name: place.answer.state if shaped else place.plain for place in self._places}
        for state in states.values():
            # schemas leave blanks free between values: next to nothing is forced
            if state.shape is not None and (forced := state.shape.forced()):
                state.shape.count_allowed(forced)
        result = self._runner.run(PassPlan(spans=tuple(place.span() for place in self._places)), states)
        drawn = result.by_request
        for place in self._places:
            place.computed += len(drawn[place.answer.name])
            place.last_token = drawn[place.answer.name][-1].token
        begun = [place.answer.passed() for place in self._places] if shaped else []
        return any(begun)

    def block_ms(self, *, shaped: bool) -> Block:
        """Of each pass the wall time, its beginning to the next one's."""
        begins = False
        for _ in range(WARM_PASSES):
            begins = self.run_pass(shaped=shaped)
        found = Block()
        before_s = time.perf_counter()
        for _ in range(PASSES):
            began, begins = begins, self.run_pass(shaped=shaped)
            now_s = time.perf_counter()
            (found.beginnings if began or begins else found.steady).append(1e3 * (now_s - before_s))
            before_s = now_s
        return found


def added_ms(name: str, passes: ShapedPasses) -> Iterator[Figure]:
    """What passes with shapes take beyond the median of those without around them."""
    # compiles what only one of both needs
    passes.block_ms(shaped=True)
    added, beginnings, noise, medians = list[float](), list[float](), list[float](), list[float]()
    for _ in range(BLOCKS):
        plain, shaped = passes.block_ms(shaped=False), passes.block_ms(shaped=True)
        middle = statistics.median(plain.steady)
        medians.append(middle)
        added += [one - middle for one in shaped.steady]
        beginnings += [one - middle for one in shaped.beginnings]
        noise += [one - middle for one in plain.steady]
    shares, others = statistics.quantiles(added, n=100), statistics.quantiles(noise, n=100)
    print(f"{name}: {statistics.median(medians):.2f} ms a pass without shapes, of which 99 of a hundred are")
    print(f"  within {others[98]:.3f} ms of that; with shapes at most {max(added):.3f} ms more")
    print(f"  beside {len(beginnings)} of {len(beginnings) + len(added)} an answer begins: these have at the")
    print(f"  median {statistics.median(beginnings):.3f} ms more, at most {max(beginnings):.3f}")
    suffix = "" if name == "sampled" else f"_{name}"
    for share, most in zip((50, 99), MAX_ADDED_MS, strict=True):
        print(f"  {share} of a hundred: {shares[share - 1]:.3f} ms more, asked for {most}")
        case = f"mask_added_ms_p{share}{suffix}"
        spread = shares[9], shares[89]
        yield Figure(case=case, value=shares[share - 1], unit="ms", floor=None, spread=spread)


def figures(words: Words) -> Iterator[Figure]:
    """Of each way to draw."""
    ops.divide_memory_alike()
    weights = random_fp8_weights(shape_27b(), CUDA, seed=7)
    longest = CONTEXT_TOKENS + WIDTH * (1 + (WARM_PASSES + PASSES) * (1 + 2 * BLOCKS))
    model = Loaded.of(shape_27b(), weights, slots=CONVERSATIONS, max_tokens=longest)
    helper = draft_model("dflash2", model, weights, slots=CONVERSATIONS)
    for name, sampling in SAMPLINGS.items():
        yield from added_ms(name, ShapedPasses(model, helper, words, sampling))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]
    print_figures(figures(Words.read()), commit=options.commit)


if __name__ == "__main__":
    main()

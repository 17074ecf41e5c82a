"""What guessing, drawing, accepting and following in one replay add to a verify pass, over the 27B shapes.

    python -m bench.one_replay --commit $(git rev-parse --short HEAD)

The whole replay's time less those of its parts in graphs of their own: the verify pass alone, the draft
model's guesses, and its following. Besides, a pass of the runner by the wall clock, with all that the host
does. Random weights, 33,000 tokens of context, every request sampled with the defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from bench.draft_models import NAMES, draft_model
from bench.engine_model import CUDA, Loaded
from bench.gpu_timing import Figure, print_figures, replays_us, time_us
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.drawn_rows import drawn_rows
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.plan import TO_GUESS, PassPlan, Span
from sparkle.engine.rows import following_rows, rows_of
from sparkle.engine.sampler import Sampler
from sparkle.engine.verify_pass import DraftModel, VerifyPass
from sparkle.model.fp8_batch import VerifyBatch
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from sparkle.schemas.job import Sampling

CONTEXT_TOKENS = 33_000
REPLAYS = 31


@dataclass(frozen=True, slots=True)
class Rig:
    """The decoder and its draft models."""

    model: Loaded
    helpers: dict[str, DraftModel]

    @classmethod
    def load(cls, *, slots: int) -> Rig:
        """Random weights."""
        config = shape_27b()
        weights = random_fp8_weights(config, CUDA, seed=7)
        model = Loaded.of(config, weights, slots=slots, max_tokens=CONTEXT_TOKENS + 256)
        model.fill()
        helpers = {name: draft_model(name, model, weights, slots=slots) for name in NAMES}
        return cls(model, helpers)

    def runner(self, helper: DraftModel | None, *, sequences: int, width: int) -> GpuRunner:
        """Which has graphs of these sizes alone."""
        return GpuRunner(
            self.model.decoder,
            self.model.cache,
            Sampler(self.model.config.vocab_size),
            num_slots=sequences,
            max_pages=self.model.page_tables(1).shape[1],
            widths=(1, width) if width > 1 else (1,),
            helper=helper,
        )

    def spans(self, *, sequences: int, width: int, guesses: bool, fresh: bool) -> Sequence[Span]:
        """One of each conversation."""
        draft = (TO_GUESS if guesses else 5,) * (width - 1)
        return [
            Span(
                request=str(slot),
                slot=slot,
                start=CONTEXT_TOKENS,
                tokens=(7, *draft),
                pages=tuple(int(page) for page in table),
                draws=True,
                fresh=fresh,
                draft=draft,
            )
            for slot, table in enumerate(self.model.page_tables(sequences).cpu())
        ]


def wall_ms(
    runner: GpuRunner, spans: Sequence[Span], states: dict[str, DrawState]
) -> tuple[float, float, float]:
    """Median milliseconds of a pass, and the spread."""
    times: list[float] = []
    for _ in range(REPLAYS):
        started_s = time.perf_counter()
        runner.run(PassPlan(spans=tuple(spans)), states)
        times.append((time.perf_counter() - started_s) * 1e3)
    times.sort()
    return times[len(times) // 2], times[len(times) // 10], times[len(times) * 9 // 10]


def filled_pass(
    rig: Rig, helper: DraftModel | None, spans: Sequence[Span], states: dict[str, DrawState]
) -> VerifyPass:
    """The graph of these spans, and what the runner would give it."""
    cache, config = rig.model.cache, rig.model.config
    bucket = Bucket(len(spans), len(spans[0].tokens), bool(spans[0].guesses))
    tables = rig.model.page_tables(len(spans))
    made = VerifyPass(
        rig.model.decoder,
        cache,
        bucket,
        tables,
        vocab_size=config.vocab_size,
        draws=True,
        helper=helper,
    )
    rows = rows_of(spans, page_tokens=cache.page_tokens)
    drawn = drawn_rows(spans, rows.span_starts, states, vocab_size=config.vocab_size)
    made.fill(rows, drawn, following_rows(spans, {}), accepted=[bucket.width] * len(spans))
    return made


def parts_us(rig: Rig, helper: DraftModel | None, batch: VerifyBatch, *, guesses: bool) -> dict[str, float]:
    """Of verify, follow and propose in graphs of their own."""
    cache, width = rig.model.cache, batch.width
    if helper is None:
        return {"verify": _graph_us(lambda: rig.model.decoder.verify(batch, cache))}
    _, outputs = helper.verify(batch, cache)
    following, kept = batch.token_ids.clamp(min=0), torch.full_like(batch.slots, -(-width // 2))
    found = {
        "verify": _graph_us(lambda: helper.verify(batch, cache)),
        "follow": _graph_us(
            lambda: helper.follow(batch, outputs, following, contexts=batch.contexts, kept=kept)
        ),
    }
    if guesses:
        found["propose"] = _graph_us(lambda: helper.propose(batch, count=width - 1, draws=None))
    return found


def measure(rig: Rig, name: str | None, *, sequences: int, width: int) -> Iterator[Figure]:
    """Of one draft model, or none, and one shape."""
    helper = None if name is None else rig.helpers[name]
    guesses = helper is not None and width > 1
    case = f"{name or 'no_draft_model'}_{sequences}x{width}"
    vocab_size = rig.model.config.vocab_size
    states = {
        str(slot): DrawState(str(slot), Sampling(), slot, [1], vocab_size, CUDA) for slot in range(sequences)
    }
    runner = rig.runner(helper, sequences=sequences, width=width)
    first = rig.spans(sequences=sequences, width=width, guesses=guesses, fresh=True)
    runner.run(PassPlan(spans=tuple(first)), states)
    spans = rig.spans(sequences=sequences, width=width, guesses=guesses, fresh=False)
    wall, low, high = wall_ms(runner, spans, states)
    yield Figure(case=f"pass_wall_{case}_ms", value=wall, unit="ms", floor=None, spread=(low, high))
    made = filled_pass(rig, helper, spans, states)
    whole, spread = replays_us(made.replay, replays=REPLAYS)
    parts = parts_us(
        rig,
        helper,
        dataclasses.replace(made.batch, token_ids=made.batch.token_ids.clamp(min=0)),
        guesses=guesses,
    )
    print(f"{case}: whole {whole:.0f} us,", ", ".join(f"{part} {us:.0f} us" for part, us in parts.items()))
    own = sum(parts.values())
    yield Figure(
        case=f"one_replay_adds_{case}_ms",
        value=(whole - own) / 1e3,
        unit="ms",
        floor=None,
        spread=((spread[0] - own) / 1e3, (spread[1] - own) / 1e3),
    )


def _graph_us(launch: Callable[[], object]) -> float:
    return time_us(lambda _: launch(), 1, replays=REPLAYS)[0]


SHAPES = ((None, 1, 1), ("mtp", 1, 4), ("dflash2", 1, 16), ("dflash2", 8, 8))


@torch.inference_mode()
def figures() -> Iterator[Figure]:
    """Every case."""
    rig = Rig.load(slots=8)
    for name, sequences, width in SHAPES:
        yield from measure(rig, name, sequences=sequences, width=width)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    options = parser.parse_args()
    print_figures(figures(), commit=options.commit)


if __name__ == "__main__":
    main()

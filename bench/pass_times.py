"""What a pass of the 27B shapes takes on one H200: a formula through measured figures. Knows no scheduler.

Milliseconds of a pass = those of its graph + those of the prompt chunks read behind it, each 0 without rows:

    graph = base + sequence * (sequences - 1) + draft * drafted rows + context * tokens behind all of them
    prompts = max(few, row * rows) + key * keys that the rows see, of start s and n rows n * (2 s + n) / 2

The base is the pass over the weights, few the same for a tile of rows. Rows of prompts are those of their
graph, or whole tiles. Padding of answers' graphs, guessing, the host's time and drawing are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkle.engine.plan import PassPlan

CONTEXT_TOKENS = 33_000
"""Behind each sequence of the measured passes, and in the shorter measured prompt."""
LONGEST_TOKENS = 262_128
"""In the longer one."""
SEQUENCES, WIDTH = 8, 8
ATTENTION_LAYERS = 16
TILE_ROWS = 128
PROMPT_ROWS = (128, 256, 512, 1024)
"""As in `loaded_gpu`, which loads torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """The formula's constants, in milliseconds."""

    base_ms: float
    """A pass of one token without anything behind it."""

    sequence_ms: float
    """Each further sequence: its states, its row."""

    draft_ms: float
    """Each drafted row."""

    context_ms: float
    """Each token behind a sequence: its keys and values."""

    few_ms: float
    """Prompts of few rows, without their keys."""

    row_ms: float
    """Each row of a prompt."""

    key_ms: float
    """Each key that a row of a prompt sees."""

    def ms(self, plan: PassPlan) -> float:
        """One pass. As in the runner answers take the graph, and what is longer is read as prompts are."""
        answers = [span for span in plan.spans if len(span.tokens) == 1 or span.draft]
        chunks = [(span.start, len(span.tokens)) for span in plan.spans if span not in answers]
        took_ms = 0.0
        if answers:
            took_ms += self.graph_ms(len(answers), sum(len(span.tokens) for span in answers))
            took_ms += self.context_ms * sum(span.start for span in answers)
        if chunks:
            keys = sum(rows * (2 * start + rows) / 2 for start, rows in chunks)
            rows = _computed_rows(sum(rows for _, rows in chunks))
            took_ms += max(self.few_ms, self.row_ms * rows) + self.key_ms * keys
        return took_ms

    def graph_ms(self, sequences: int, rows: int) -> float:
        """A pass of so many sequences, at least one, and rows in all, with nothing behind them."""
        return self.base_ms + self.sequence_ms * (sequences - 1) + self.draft_ms * (rows - sequences)


def _computed_rows(rows: int) -> int:
    graph = next((size for size in PROMPT_ROWS if rows <= size), 0)
    return graph or -(-rows // TILE_ROWS) * TILE_ROWS


def fitted(measured: Mapping[str, float]) -> PassTimes:
    """Through the figures of these cases of bench.engine [ms, s], bench.sequence_ops [us] and bench.ops [ms].

    What a token of context takes in the graph is attention's own time, measured alone: what eight sequences
    take more than one. The rest of what they take more is the sequences'. Of prompts, two lengths give both.
    """
    further = SEQUENCES - 1
    attention_us = measured["attention_8x1_33k_e4m3"] - measured["attention_1x1_33k_e4m3"]
    context_ms = ATTENTION_LAYERS * attention_us / 1e3 / (further * CONTEXT_TOKENS)
    behind_ms = context_ms * CONTEXT_TOKENS
    plain_ms = measured["plain_1x1_33k"]
    # row * n + key * n * n / 2, over n
    short_ms = 1e3 * measured["prefill_1x33k"] / CONTEXT_TOKENS
    long_ms = 1e3 * measured["prefill_1x262k"] / LONGEST_TOKENS
    key_ms = 2 * (long_ms - short_ms) / (LONGEST_TOKENS - CONTEXT_TOKENS)
    return PassTimes(
        base_ms=plain_ms - behind_ms,
        sequence_ms=(measured["plain_8x1_33k"] - plain_ms) / further - behind_ms,
        draft_ms=(measured["verify_8x8_33k"] - measured["plain_8x1_33k"]) / (SEQUENCES * (WIDTH - 1)),
        context_ms=context_ms,
        few_ms=measured["dense_pass_128"],
        row_ms=short_ms - key_ms * CONTEXT_TOKENS / 2,
        key_ms=key_ms,
    )


def latest(*files: Path) -> dict[str, float]:
    """Of each case in these files of rows the value measured last."""
    found: dict[str, float] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["case"]] = row["value"]
    return found

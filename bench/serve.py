"""Times what users wait for: first tokens of long prompts, new and seen, and of questions beside them.

    python -m bench.serve --commit $(git rev-parse --short HEAD) [--only alone several] [--kept 3 --kept 1]
    python -m bench.serve --commit … --bus --model DIR
    python -m bench.serve --commit … --model sparkle/checkpoints/sparkle-tiny --small

Without a model it is the engine of the 27B shapes on an H200, in this process, with random weights: for each
`--kept` one whose drafts of the own head keep so many tokens a pass, 1 being no drafts. With `--model` it is
that checkpoint's engine as it is; with `--bus` a worker with it behind a nats-server, asked by a client.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench.arrivals import Kind
from bench.floors import Floors
from bench.gpu_timing import Figure, print_figures
from bench.random_engine import RandomModel, served_shape
from bench.serve_bus import bus_server
from bench.serve_cases import CASES, Bench, Shapes, warm
from bench.serve_load import EngineServer, Prompts, Server
from sparkle.engine.assemble import assemble
from sparkle.engine.settings import OWN_HEAD, EngineSettings
from sparkle.model.config import read_config

DRAFT_TOKENS = 3
SEED = 11
SMALL = Shapes(
    report_tokens=300,
    answer_tokens=12,
    reports=3,
    follow_up_tokens=20,
    document_tokens=800,
    documents=2,
    question=Kind(40, 8),
    questions_per_s=4.0,
    questions_for_s=1.0,
)
"""For sparkle-tiny on a CPU."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    cases: Sequence[str]
    shapes: Shapes
    model: Path | None
    bus: bool
    kept: Sequence[float]

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> tuple[Options, str]:
        """The options, and the commit that is measured."""
        parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
        parser.add_argument("--commit", required=True, help="what was measured, for the results")
        parser.add_argument("--only", nargs="*", choices=CASES, help="cases, all where it is left out")
        parser.add_argument("--model", type=Path, help="a checkpoint's directory in place of random weights")
        parser.add_argument("--bus", action="store_true", help="by way of the queue; needs --model")
        parser.add_argument("--small", action="store_true", help="lengths for sparkle-tiny on a CPU")
        parser.add_argument("--answer-tokens", type=int, help="of reports and documents")
        parser.add_argument("--kept", type=float, action="append", help="tokens a pass with random weights")
        given = parser.parse_args(arguments)
        if given.bus and given.model is None:
            parser.error("--bus needs --model: `sparkle checkpoint random` writes one")
        shapes = SMALL if given.small else Shapes()
        if given.answer_tokens is not None:
            shapes = replace(shapes, answer_tokens=given.answer_tokens)
        options = cls(given.only or [*CASES], shapes, given.model, given.bus, given.kept or [3.0, 1.0])
        return options, given.commit


def figures(options: Options) -> Iterator[Figure]:
    """Every wanted case, of every wanted engine."""
    if options.model is None:
        yield from of_random_engines(options)
        return
    vocab_size = read_config(options.model).vocab_size
    with ExitStack() as stack:
        server: Server
        if options.bus:
            server = stack.enter_context(bus_server("--model", str(options.model)))
        else:
            server = EngineServer(assemble(options.model, EngineSettings()).engine)
        suffix = "_bus" if options.bus else ""
        yield from named(of_server(options, server, vocab_size, None, kept=1.0), suffix)


def of_random_engines(options: Options) -> Iterator[Figure]:
    """Of the 27B shapes, one engine after another."""
    model = RandomModel(served_shape(), torch.device("cuda"))
    floors = Floors(model.config, model.pass_weight_bytes)
    for kept in options.kept:
        drafts = kept > 1
        settings = EngineSettings(
            draft_tokens=DRAFT_TOKENS if drafts else 0, draft_model=OWN_HEAD if drafts else None
        )
        assembly = model.assembly(settings, kept=kept if drafts else None)
        print(f"kept {kept:g}:", *assembly.plan.lines(), f"  start {assembly.phases_s}", sep="\n", flush=True)
        server = EngineServer(assembly.engine)
        del assembly
        found = of_server(options, server, model.config.vocab_size - 1, floors, kept=kept)
        yield from named(found, "" if drafts else "_no_drafts")
        del server


def of_server(
    options: Options, server: Server, vocab_size: int, floors: Floors | None, *, kept: float
) -> Iterator[Figure]:
    """The wanted cases of one server."""
    bench = Bench(
        server=server, prompts=Prompts(vocab_size, seed=SEED), shapes=options.shapes, floors=floors, kept=kept
    )
    print(f"the first prompt after the start: {warm(bench):.2f} s", flush=True)
    for case in options.cases:
        yield from CASES[case](bench)


def named(found: Iterable[Figure], suffix: str) -> Iterator[Figure]:
    """The same under names that say whose they are."""
    return (replace(figure, case=figure.case + suffix) for figure in found)


def main() -> None:
    """Measures and prints."""
    options, commit = Options.parse()
    print_figures(figures(options), commit=commit)


if __name__ == "__main__":
    main()

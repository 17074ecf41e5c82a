"""Times the engine's passes over the shapes of Qwen3.8-27B on one H200, each beside its floor.

    python -m bench.engine --commit $(git rev-parse --short HEAD) [--only verify_1x16_33k …]

Random weights: speed does not depend on their values. A verify or plain pass is one replay of its captured
graph, as the engine runs it; a prompt is read in chunks, from its tokens on the device to its last token's
logits, wall clock. Floors: bytes over the bandwidth a plain reduction reaches, and for prompts operations
over the data sheet's rates. How vLLM does on the same chip stands in docs/speed.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch

from bench.engine_model import Loaded
from bench.gpu_timing import READ_BYTES_PER_S, Figure, print_figures, time_us
from sparkle.engine.settings import Device, EngineSettings

CONTEXT_TOKENS = 33_000
LONGEST_TOKENS = 262_144
SEQUENCES = 8
REPLAYS = 31
PASSES = {
    "verify_1x16_33k": (1, 16),
    "plain_1x1_33k": (1, 1),
    "verify_8x8_33k": (8, 8),
    "plain_8x1_33k": (8, 1),
}
"""Conversations, and new tokens of each."""
PROMPTS = {"prefill_1x33k": (1, 3), "prefill_8x33k": (8, 1)}
"""Prompts read one after another, and how often that is measured."""


def passes(model: Loaded, wanted: Callable[[str], bool]) -> Iterator[Figure]:
    """Graph replays over conversations of 33,000 tokens."""
    model.fill()
    for case, (sequences, width) in PASSES.items():
        if not wanted(case):
            continue
        batch = model.verify_batch(sequences, width, CONTEXT_TOKENS)
        value, spread = time_us(lambda _: model.decoder.verify(batch, model.cache), 1, replays=REPLAYS)  # noqa: B023
        floor = model.pass_bytes(sequences, CONTEXT_TOKENS) / READ_BYTES_PER_S * 1e3
        yield Figure(
            case=case,
            value=value / 1e3,
            unit="ms",
            floor=floor,
            spread=(spread[0] / 1e3, spread[1] / 1e3),
        )


def prompts(model: Loaded, wanted: Callable[[str], bool], chunk_tokens: int) -> Iterator[Figure]:
    """Cold prompts of 33,000 tokens, to the last one's first token."""
    chosen = {case: shape for case, shape in PROMPTS.items() if wanted(case)}
    if chosen:
        _read_all(model, 1, chunk_tokens)  # compiles, and libraries choose their kernels
    for case, (count, rounds) in chosen.items():
        times = sorted(_read_all(model, count, chunk_tokens) for _ in range(rounds))
        yield Figure(
            case=case,
            value=times[len(times) // 2],
            unit="s",
            floor=count * model.floors.prompt_s(CONTEXT_TOKENS),
            spread=(times[0], times[-1]),
        )


def longest(chunk_tokens: int) -> Iterator[Figure]:
    """One conversation of 262,144 tokens, all but 16 read as a prompt; its logits must be finite."""
    model = Loaded.load(slots=1, max_tokens=LONGEST_TOKENS)
    tables = model.page_tables(1)
    tokens = torch.randint(0, model.config.vocab_size, (LONGEST_TOKENS - 16,), device="cuda")
    started_s = time.perf_counter()
    logits = model.read_prompt(0, tokens, tables, chunk_tokens=chunk_tokens)
    assert bool(logits.isfinite().all()), "a prompt of 262,128 tokens ends with numbers that are not finite"
    took_s = time.perf_counter() - started_s
    batch = model.verify_batch(1, 16, LONGEST_TOKENS - 16)
    batch.accepted.zero_()
    logits = model.decoder.verify(batch, model.cache)
    assert bool(logits.isfinite().all()), "the last 16 of 262,144 tokens give numbers that are not finite"
    floor = model.floors.prompt_s(LONGEST_TOKENS)
    yield Figure(case="prefill_1x262k", value=took_s, unit="s", floor=floor, spread=(took_s, took_s))


def _read_all(model: Loaded, count: int, chunk_tokens: int) -> float:
    """Seconds from the first prompt's start to the last one's logits."""
    tables = model.page_tables(count)
    tokens = torch.randint(0, model.config.vocab_size, (count, CONTEXT_TOKENS), device="cuda")
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    for slot in range(count):
        logits = model.read_prompt(slot, tokens[slot], tables, chunk_tokens=chunk_tokens)
        int(logits.argmax())  # the first token is had: a producer would be told
    return time.perf_counter() - started_s


def figures(wanted: Callable[[str], bool], chunk_tokens: int) -> Iterator[Figure]:
    """Every wanted case."""
    model = Loaded.load(slots=SEQUENCES, max_tokens=CONTEXT_TOKENS + 64)
    yield from prompts(model, wanted, chunk_tokens)
    yield from passes(model, wanted)
    del model
    if wanted("prefill_1x262k"):
        torch.cuda.empty_cache()
        yield from longest(chunk_tokens)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    parser.add_argument("--only", nargs="*", default=[], help="cases, all where it is left out")
    default = EngineSettings().sizes(Device.CUDA).pass_tokens
    parser.add_argument("--chunk-tokens", type=int, default=default, help="rows of a prompt read at once")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]

    def wanted(case: str) -> bool:
        return not options.only or case in options.only

    print_figures(figures(wanted, options.chunk_tokens), commit=options.commit)


if __name__ == "__main__":
    main()

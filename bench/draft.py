"""Times the draft models over the shapes of Qwen3.8-27B on one H200, each beside its floor.

    python -m bench.draft --commit $(git rev-parse --short HEAD) [--only draft_mtp3_ms …] [--kernels]

A draft is one graph: what the last pass kept enters the draft model's context, then it guesses. Random
weights, 33,000 tokens of context. Floors: weights, cached keys and values read once at 4.6 TB/s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.draft_models import DRAFT_VOCABULARY, dflash_model, dflash_weights, mtp_head
from bench.engine_model import CUDA, Loaded
from bench.gpu_timing import READ_BYTES_PER_S, Figure, kernel_times, print_figures, time_us
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.fp8_weights import Fp8DecoderWeights, tensor_bytes
from sparkle.model.mtp_chain import chain_start
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b, shape_dflash_27b

CONTEXT_TOKENS = 33_000
SEQUENCES = 8
MTP_GUESSES = 3
REPLAYS = 31


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft to be timed: what launches it, and the bytes that it must read."""

    launch: Callable[[], Tensor]
    bytes: float


def dflash_draft(weights: Fp8DecoderWeights, *, sequences: int, rows: int) -> Draft:
    """Takes half of the last block's rows into the contexts, then guesses rows - 1 tokens of each."""
    config = shape_dflash_27b()
    own = dflash_weights(config)
    model = dflash_model(config, own, weights)
    cache = DFlashCache(config, num_slots=sequences, device=CUDA, dtype=torch.bfloat16)
    cache.keys.normal_()
    cache.values.normal_()
    outputs = torch.randn(sequences * rows, config.taps_size, device=CUDA).bfloat16()
    slots = torch.arange(sequences, device=CUDA)
    kept = torch.full((sequences,), rows // 2, device=CUDA)
    contexts = torch.full((sequences,), CONTEXT_TOKENS, device=CUDA)
    batch = ContextBatch(
        span_starts=torch.arange(0, sequences * rows + 1, rows, device=CUDA),
        slots=slots,
        contexts=contexts,
        kept=kept,
    )
    anchors = torch.randint(0, config.vocab_size, (sequences,), device=CUDA)

    def launch() -> Tensor:
        model.extend(outputs, batch, cache)
        return model.propose(anchors, slots, contexts + kept, cache, rows=rows)

    head = weights.lm_head.rows(0, DRAFT_VOCABULARY)
    read = tensor_bytes((own.fuse, own.layers, own.selector.projection, head))
    return Draft(launch, read + sequences * DFlashCache.bytes_per_slot(config, torch.bfloat16))


def mtp_draft(model: Loaded, weights: Fp8DecoderWeights, *, sequences: int, guesses: int) -> Draft:
    """Reads the rows of the last pass, then guesses."""
    config = model.config
    head = mtp_head(model, weights)
    batch = model.verify_batch(sequences, guesses + 1, CONTEXT_TOKENS)
    hidden = torch.randn(batch.token_ids.shape[0], config.hidden_size, device=CUDA).bfloat16()
    kept = torch.full((sequences,), 2, device=CUDA)

    def launch() -> Tensor:
        outputs = head.read(batch, hidden, model.cache)
        start = chain_start(batch, outputs, contexts=batch.contexts, kept=kept)
        return head.draft(start, model.cache, count=guesses)

    kv = 2 * CONTEXT_TOKENS * config.num_kv_heads * config.head_dim
    once = tensor_bytes((weights.mtp, weights.lm_head.rows(0, DRAFT_VOCABULARY))) + sequences * kv
    return Draft(launch, guesses * once)


def drafts(model: Loaded, weights: Fp8DecoderWeights) -> dict[str, Callable[[], Draft]]:
    """What can be timed, by case."""
    return {
        "draft_mtp3_ms": lambda: mtp_draft(model, weights, sequences=1, guesses=MTP_GUESSES),
        "draft_8xmtp3_ms": lambda: mtp_draft(model, weights, sequences=SEQUENCES, guesses=MTP_GUESSES),
        "draft_dflash2_w8_ms": lambda: dflash_draft(weights, sequences=1, rows=8),
        "draft_dflash2_w16_ms": lambda: dflash_draft(weights, sequences=1, rows=16),
        "draft_dflash2_8xw8_ms": lambda: dflash_draft(weights, sequences=SEQUENCES, rows=8),
    }


def figures(wanted: Callable[[str], bool], *, kernels: bool) -> Iterator[Figure]:
    """Every wanted case."""
    config = shape_27b()
    weights = random_fp8_weights(config, CUDA, seed=7)
    model = Loaded.of(config, weights, slots=SEQUENCES, max_tokens=CONTEXT_TOKENS + 64)
    model.fill()
    for case, make in drafts(model, weights).items():
        if not wanted(case):
            continue
        draft = make()
        value, (low, high) = time_us(lambda _: draft.launch(), 1, replays=REPLAYS)  # noqa: B023
        if kernels:
            print(case)
            for name, count, microseconds in kernel_times(draft.launch):
                print(f"  {microseconds:8.1f} us  {count:4d} x  {name[:90]}")
        yield Figure(
            case=case,
            value=value / 1e3,
            unit="ms",
            floor=draft.bytes / READ_BYTES_PER_S * 1e3,
            spread=(low / 1e3, high / 1e3),
        )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    parser.add_argument("--only", nargs="*", default=[], help="cases, all where it is left out")
    parser.add_argument("--kernels", action="store_true", help="print each kernel's share, too")
    options = parser.parse_args()
    # torch has no type for the seed
    torch.manual_seed(7)  # pyright: ignore[reportUnknownMemberType]

    def wanted(case: str) -> bool:
        return not options.only or case in options.only

    print_figures(figures(wanted, kernels=options.kernels), commit=options.commit)


if __name__ == "__main__":
    main()

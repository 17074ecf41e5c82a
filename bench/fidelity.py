"""How far the FP8 engine's distributions are from float32's, on sparkle-tiny and one H200.

    python -m bench.fidelity --commit $(git rev-parse --short HEAD)

Each figure is a KL divergence in thousandths of a nat, the mean over all tokens of the demo's prompts, the
same weights on both sides. What FP8 products, activations and cache add stands beside what bfloat16 adds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor

from bench.engine_model import CUDA, Loaded
from bench.gpu_timing import Figure, print_figures
from sparkle.engine.settings import default_model
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.fp8_loader import load_fp8_weights
from sparkle.model.weights import load_weights
from sparkle.producers.demo_prompts import demo_prompts
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

MAX_TOKENS = 512
CPU = torch.device("cpu")


def plain_logits(config: ModelConfig, prompts: list[list[int]], dtype: torch.dtype) -> list[Tensor]:
    """float32 [tokens, vocab] of each prompt by the plain decoder in `dtype`, on the CPU."""
    weights, _ = load_weights(default_model(), config, device=CPU, dtype=dtype)
    decoder = Decoder(config, weights)
    results: list[Tensor] = []
    for prompt in prompts:
        cache = SequenceCache(
            config, num_pages=1, page_tokens=MAX_TOKENS, num_slots=1, device=CPU, dtype=dtype
        )
        rows = len(prompt)
        batch = PassBatch(
            token_ids=torch.tensor(prompt),
            positions=torch.arange(rows).repeat(3, 1),
            span_starts=torch.tensor([0, rows]),
            slots=torch.tensor([0]),
            contexts=torch.tensor([0]),
            page_tables=torch.tensor([[0]], dtype=torch.int32),
            logit_rows=torch.arange(rows),
        )
        results.append(decoder.forward(batch, cache))
    return results


def fp8_logits(config: ModelConfig, prompts: list[list[int]]) -> list[Tensor]:
    """The same by the FP8 decoder on the GPU."""
    weights, _ = load_fp8_weights(default_model(), config, CUDA)
    model = Loaded.of(config, weights, slots=1, max_tokens=MAX_TOKENS)
    tables = model.page_tables(1)
    results: list[Tensor] = []
    for prompt in prompts:
        model.cache.zero_slot(0)
        tokens = torch.tensor(prompt, device=CUDA)
        batch = model.prompt_batch(0, 0, tokens, tables, logit_rows=range(len(prompt)))
        results.append(model.decoder.read(batch, model.cache).cpu())
    return results


def figures() -> Iterator[Figure]:
    """Every pair."""
    config = read_config(default_model())
    builder = PromptBuilder(Tokenizer.load(default_model()), ChatTemplate.load(default_model()))
    prompts = [builder.build(prompt.job) for prompt in demo_prompts()]
    exact = plain_logits(config, prompts, torch.float32)
    narrow = plain_logits(config, prompts, torch.bfloat16)
    fp8 = fp8_logits(config, prompts)
    for case, wanted, got in (
        ("kl_float32_to_bfloat16", exact, narrow),
        ("kl_float32_to_fp8", exact, fp8),
        ("kl_bfloat16_to_fp8", narrow, fp8),
    ):
        divergences = [divergence(one, other) for one, other in zip(wanted, got, strict=True)]
        means = [1e3 * float(part.mean()) for part in divergences]
        value = 1e3 * float(torch.cat(divergences).mean())
        yield Figure(case=case, value=value, unit="mnat", floor=0.0, spread=(min(means), max(means)))


def divergence(wanted: Tensor, got: Tensor) -> Tensor:
    """KL divergence of each row's distributions, in nats; logits [T, vocab]."""
    wanted, got = wanted.double().log_softmax(-1), got.double().log_softmax(-1)
    return (wanted.exp() * (wanted - got)).sum(-1)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--commit", required=True, help="what was measured, for the results")
    print_figures(figures(), commit=parser.parse_args().commit)


if __name__ == "__main__":
    main()

"""The bundled model for tests: its prompts as tokens, and its greedy answers by either decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.engine.settings import default_model
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.decoder import Decoder
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.weights import DecoderWeights, load_weights
from sparkle.producers.demo_prompts import demo_prompts
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer
from tests.model.driver import CPU, Driver
from tests.model.fp8_driver import Fp8Driver, Running, quantised


@dataclass(frozen=True, slots=True)
class Tiny:
    """sparkle-tiny in float32, and prompts that it was trained to answer."""

    config: ModelConfig
    weights: DecoderWeights
    prompts: list[list[int]]

    @classmethod
    def load(cls) -> Tiny:
        config = read_config(default_model())
        weights, _ = load_weights(default_model(), config, device=CPU, dtype=torch.float32)
        builder = PromptBuilder(Tokenizer.load(default_model()), ChatTemplate.load(default_model()))
        return cls(config, weights, [builder.build(prompt.job) for prompt in demo_prompts()])

    def exact(self) -> Driver:
        """Sequences through the float32 decoder."""
        return Driver(Decoder(self.config, self.weights), self.config, num_tokens=4096)

    def fp8(self, device: torch.device = CPU) -> Fp8Driver:
        """Sequences through the FP8 decoder."""
        decoder = Fp8Decoder(self.config, quantised(self.weights, device))
        return Fp8Driver(decoder, self.config, device=device, num_tokens=4096)

    def exact_answer(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The likeliest tokens by the float32 decoder."""
        driver = self.exact()
        sequence, answer, unread = driver.start(), list[int](), list(prompt)
        while len(answer) < tokens:
            (logits,) = driver.run((sequence, unread))
            unread = [int(logits[-1].argmax())]
            answer += unread
        return answer


def plain_answer(driver: Fp8Driver, prompt: Sequence[int], tokens: int) -> tuple[Running, list[int]]:
    """The likeliest tokens by the FP8 decoder, one a pass, and the sequence that read all but the last."""
    sequence = driver.start()
    (logits,) = driver.read((sequence, prompt))
    answer = [likeliest(logits[-1])]
    while len(answer) < tokens:
        (logits,) = driver.verify((sequence, answer[-1:]), width=1)
        answer.append(likeliest(logits[-1]))
    return sequence, answer


def likeliest(logits: Tensor) -> int:
    return int(logits.argmax())

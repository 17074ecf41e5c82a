"""Greedy answers token by token against the published implementation's own generation."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sparkle.model.config import read_config
from sparkle.model.decoder import Decoder
from sparkle.model.weights import load_weights
from tests.model.driver import CPU, Driver
from tests.model.published import VOCAB, Published, Shape

SHAPE = Shape(num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=2)
PROMPT_LENGTHS = (1, 7, 64, 129)
PROMPTS_OF_EACH = 5
ANSWER_TOKENS = 64


def test_twenty_greedy_answers_at_once(tmp_path: Path) -> None:
    published = Published(SHAPE, seed=5)
    published.save(tmp_path)
    order = random.Random(5)
    prompts: list[list[int]] = []
    wanted: list[list[int]] = []
    for length in PROMPT_LENGTHS:
        group = [[order.randrange(VOCAB) for _ in range(length)] for _ in range(PROMPTS_OF_EACH)]
        prompts += group
        wanted += published.greedy(group, ANSWER_TOKENS)
    assert len({tuple(answer) for answer in wanted}) == len(prompts)

    config = read_config(tmp_path)
    weights, _ = load_weights(tmp_path, config, device=CPU, dtype=torch.float32)
    driver = Driver(Decoder(config, weights), config, num_tokens=8192, num_slots=len(prompts))
    sequences = [driver.start() for _ in prompts]
    answers: list[list[int]] = [[] for _ in prompts]
    unread = prompts
    for _ in range(ANSWER_TOKENS):
        spans = list(zip(sequences, unread, strict=True))
        unread = [[int(logits[-1].argmax())] for logits in driver.run(*spans)]
        for answer, token in zip(answers, unread, strict=True):
            answer += token
    assert answers == wanted

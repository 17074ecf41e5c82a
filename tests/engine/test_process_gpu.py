"""The engine process on an H200: the answers are those of the CPU's, over the same socket."""

from __future__ import annotations

import asyncio

import pytest
import torch

from sparkle.engine.client import EngineProcess
from sparkle.engine.frames import Accepted, Cached, Delta, Finished, Ready, Submit
from sparkle.engine.settings import Device, EngineSettings, default_model
from sparkle.producers.demo_prompts import demo_prompts
from sparkle.schemas import codec
from tests.engine.test_fp8_answers import CLEAR

pytestmark = pytest.mark.gpu


async def answers(settings: EngineSettings) -> tuple[Ready, list[list[int]]]:
    """The tokens of all of the demo's answers, asked for at once."""
    engine = EngineProcess(default_model(), settings)
    ready = await engine.start()
    jobs = [prompt.job.evolve(tenant="t", max_tokens=40) for prompt in demo_prompts()]
    tokens: dict[str, list[int]] = {job.id: [] for job in jobs}
    for job in jobs:
        await engine.submit(Submit(job=job.id, payload=codec.encode(job)))
    running = set(tokens)
    async for frame in engine.frames:
        assert isinstance(frame, Accepted | Delta | Finished | Cached), frame
        if isinstance(frame, Delta):
            tokens[frame.job] += frame.tokens
        if isinstance(frame, Finished):
            running.remove(frame.job)
            if not running:
                break
    await engine.stop()
    assert engine.returncode == 0
    return ready, list(tokens.values())


def test_the_demos_answers(gpu: torch.device) -> None:
    assert gpu.type == "cuda"
    settings = EngineSettings(device=Device.CUDA, slots=4, kv_tokens=20_000)
    ready, on_gpu = asyncio.run(answers(settings))
    _, on_cpu = asyncio.run(answers(EngineSettings(device=Device.CPU)))
    assert [on_gpu[number] for number in CLEAR] == [on_cpu[number] for number in CLEAR]
    assert (ready.slots, ready.max_context_tokens, ready.kv_tokens) == (4, 8192, 312 * 64)
    assert ready.memory[0].startswith("memory plan for NVIDIA H200")

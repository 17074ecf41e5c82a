"""The model as it is put on a GPU, here on the CPU: planned first, then exactly what the plan says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkle.engine.buckets import Bucket
from sparkle.engine.loaded_gpu import LoadedGpu, needs_of
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import OWN_HEAD, Device, EngineSettings, default_model
from sparkle.engine.short_spans import ShortSpans
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import CheckpointError, ConfigError
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.fp8_loader import Fp8LoadReport
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, engine_around, max_pages
from tests.engine.test_fp8_answers import CLEAR
from tests.model.tiny import Tiny
from tests.unit.engine.test_memory_plan import PAGE_BYTES, SLOT_BYTES, WEIGHTS_BYTES

SETTINGS = EngineSettings(slots=2, pass_tokens=40, kv_tokens=2000, draft_tokens=0)
CPU = torch.device("cpu")


def loaded(directory: Path, settings: EngineSettings = SETTINGS, *, free_bytes: int = 10**10) -> LoadedGpu:
    return LoadedGpu(
        directory,
        read_config(default_model()),
        settings.sizes(Device.CUDA),
        Stopwatch(),
        device=CPU,
        name="a GPU",
        free_bytes=free_bytes,
    )


def test_the_needs_of_the_served_model() -> None:
    """The arithmetic of the architecture, against the tensors that are allocated."""
    config = shape_27b()
    needs = needs_of(config, EngineSettings().sizes(Device.CUDA))
    # 16 layers of keys and values and the draft head's, 4 heads of 256 in FP8, 64 tokens
    assert needs.page_bytes == 64 * 17 * 2 * 4 * 256
    state = 4 * 48 * 128 * 128
    # inputs and what is before them, writes, keys and decays
    window = 2 * (16 + 3) * 10_240 + 4 * 16 * 48 * 128 + 16 * 48 * (2 * 128 + 4)
    assert needs.slot_bytes == 48 * (state + window)
    matrices = 64 * 3 * 5120 * 17_408 + 48 * 5120 * (16_384 + 6144) + 16 * 5120 * (14_336 + 6144)
    matrices += 5120 * 10_240 + 3 * 5120 * 17_408 + 5120 * (14_336 + 6144)  # the draft head
    head, embedding = 248_320 * 5120, 2 * 248_320 * 5120
    # and a little: one scale for 128 by 128 values, gates, norms
    assert 1.0 < needs.weights_bytes / (matrices + head + embedding) < 1.003
    # the plan's own tests, which know no tensors, plan with these
    assert needs.page_bytes == PAGE_BYTES
    assert needs.slot_bytes == SLOT_BYTES
    assert needs.weights_bytes == WEIGHTS_BYTES


def test_the_plan_is_what_is_allocated() -> None:
    made = loaded(default_model())
    assert made.plan.kv_tokens == made.sizes.kv_tokens == 31 * 64
    assert made.plan.needs == needs_of(read_config(default_model()), SETTINGS.sizes(Device.CUDA))
    assert made.plan.kv_bytes == made.cache.kv_bytes
    assert made.plan.state_bytes == made.cache.state_bytes
    assert made.plan.total_bytes <= 10**10


def test_pages_get_what_is_left() -> None:
    free = 4 * 10**9
    made = loaded(default_model(), EngineSettings(slots=2, pass_tokens=40), free_bytes=free)
    assert made.cache.kv_bytes == made.plan.kv_bytes
    assert 0 <= free - made.plan.total_bytes < made.plan.needs.page_bytes


def test_a_measurements_own_weights_stand_in_for_the_files(tmp_path: Path) -> None:
    asked: list[Path] = []

    def read(
        directory: Path, config: ModelConfig, device: torch.device
    ) -> tuple[Fp8DecoderWeights, Fp8LoadReport]:
        asked.append(directory)
        report = Fp8LoadReport(quantised=0, skipped=("a", "b"), read_bytes=0)
        return random_fp8_weights(config, device, 1), report

    made = LoadedGpu(
        tmp_path,
        read_config(default_model()),
        SETTINGS.sizes(Device.CUDA),
        Stopwatch(),
        device=CPU,
        name="a GPU",
        free_bytes=10**10,
        read_weights=read,
    )
    assert (asked, made.skipped) == ([tmp_path], 2)


def test_too_little_memory_is_refused_before_the_files_are_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a GPU has 1\.0 GB of memory free but \d\.\d GB are needed"):
        loaded(tmp_path, free_bytes=10**9)
    with pytest.raises(CheckpointError):
        loaded(tmp_path)


def test_the_phases_are_timed_one_after_another() -> None:
    watch = Stopwatch()
    config = read_config(default_model())
    sizes = SETTINGS.sizes(Device.CUDA)
    LoadedGpu(default_model(), config, sizes, watch, device=CPU, name="a GPU", free_bytes=10**10)
    assert list(watch.laps) == ["plan_s", "weights_s", "cache_s"]
    assert all(seconds >= 0.0 for seconds in watch.laps.values())


def test_it_answers_as_the_float32_model_does_also_after_its_passes_were_timed() -> None:
    config, tokenizer, tiny = read_config(default_model()), Tokenizer.load(default_model()), Tiny.load()
    timed = EngineSettings(slots=2, pass_tokens=40, kv_tokens=2000, draft_tokens=5, draft_model=OWN_HEAD)
    made = loaded(default_model(), timed)
    runner = made.runner(Sampler(tokenizer.vocab_size), max_pages=max_pages(config, made.sizes))
    # guesses of the checkpoint's own head, and copies as wide as any
    assert set(runner.pass_ms) == {
        Bucket(count, width, guesses)
        for count in (1, 2)
        for width, guesses in ((1, False), (8, False), (4, True), (8, True))
    }
    assert all(took_ms > 0 for took_ms in runner.pass_ms.values())
    prompt = tiny.prompts[CLEAR[0]]
    job = Job(prompt_tokens=prompt, max_tokens=8, sampling=GREEDY)
    (answer,) = engine_around(runner, config, tokenizer, made.sizes).run(job)
    assert answer.tokens == tiny.exact_answer(prompt, 8)


def test_between_the_smallest_and_the_largest_the_times_lie_on_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Bucket] = []

    def time_ms(_self: ShortSpans, bucket: Bucket, _clear: object) -> float:
        asked.append(bucket)
        return 8.0 + 2.0 * bucket.guesses + 0.5 * bucket.sequences + 0.1 * bucket.width

    monkeypatch.setattr(ShortSpans, "_time_ms", time_ms)
    settings = EngineSettings(slots=5, pass_tokens=40, kv_tokens=2000, draft_tokens=3, draft_model=OWN_HEAD)
    runner = loaded(default_model(), settings).runner(Sampler(100), max_pages=4)
    assert {bucket.sequences for bucket in runner.pass_ms} == {1, 2, 4, 5}
    assert {bucket.sequences for bucket in asked} == {1, 5}
    for bucket, ms in runner.pass_ms.items():
        assert ms == pytest.approx(8.0 + 2.0 * bucket.guesses + 0.5 * bucket.sequences + 0.1 * bucket.width)

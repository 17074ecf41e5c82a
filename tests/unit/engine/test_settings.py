"""Bounds, and what is derived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkle.config import load
from sparkle.engine.settings import Device, EngineSettings, Sizes, default_model
from sparkle.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"slots": 0}, "slots is 0 but must be 1 to 1,000,000,000,000; leave it out for the default"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"pass_tokens": -1}, "pass_tokens is -1"),
        ({"kv_tokens": 0}, "kv_tokens is 0"),
        ({"prompt_threads": 0}, "prompt_threads is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"max_context_tokens": 0}, "max_context_tokens is 0"),
        ({"threads": 10**9}, "threads is 1000000000 but must be 1 to 1,024; leave it out"),
        ({"prompt_threads": 1025}, "prompt_threads is 1025 but must be 1 to 1,024"),
        *(
            ({name: 10**30}, f"{name} is {10**30} but must be 1 to 1,000,000,000,000")
            for name in (
                "slots",
                "pass_tokens",
                "chunk_tokens",
                "page_tokens",
                "kv_tokens",
                "max_context_tokens",
            )
        ),
        ({"cached_slots": -1}, "cached_slots is -1 but must be 0 to 1,000,000,000,000"),
        ({"cache_s": -1}, "cache_s is -1.0 but must be 0 to 86,400; 0 keeps nothing"),
        ({"cache_s": 90_000}, "cache_s is 90000.0 but must be 0 to 86,400"),
        ({"draft_tokens": -1}, "draft_tokens is -1 but must be 0 to 15"),
        ({"draft_tokens": 16}, "draft_tokens is 16 but must be 0 to 15"),
        ({"draft_vocab_size": 1023}, "draft_vocab_size is 1023 but must be 1,024 to 1,000,000,000,000"),
    ],
)
def test_a_bad_value_is_refused_with_both_numbers(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(EngineSettings, "engine", environ={}, flags=values)


@pytest.mark.parametrize(
    ("values", "device", "message"),
    [
        ({"slots": 8, "pass_tokens": 8}, Device.CPU, "pass_tokens is 8 but must be above slots, 8"),
        ({"slots": 256}, Device.CPU, "pass_tokens is 256 but must be above slots, 256"),
        ({"pass_tokens": 64}, Device.CUDA, "pass_tokens is 64 but must be above slots, 64"),
        ({"kv_tokens": 15}, Device.CPU, "kv_tokens is 15 but must be at least page_tokens, 16"),
        ({"kv_tokens": 63}, Device.CUDA, "kv_tokens is 63 but must be at least page_tokens, 64"),
        ({"slots": 129}, Device.CUDA, "slots is 129 but must be at most 128 on a GPU"),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    values: dict[str, int], device: Device, message: str
) -> None:
    settings = load(EngineSettings, "engine", environ={}, flags=values)
    with pytest.raises(ConfigError, match=message):
        settings.sizes(device)


def test_each_device_has_its_defaults_and_what_is_set_holds_on_both() -> None:
    cpu, gpu = EngineSettings().sizes(Device.CPU), EngineSettings().sizes(Device.CUDA)
    assert (cpu.slots, cpu.pass_tokens, cpu.page_tokens, cpu.kv_tokens) == (8, 256, 16, 32_768)
    assert (gpu.slots, gpu.pass_tokens, gpu.page_tokens, gpu.kv_tokens) == (64, 8448, 64, None)
    assert (cpu.chunk_tokens, gpu.chunk_tokens) == (256, 4096)
    assert EngineSettings(slots=3).sizes(Device.CUDA).pass_tokens == 8448
    assert (cpu.cached_slots, cpu.cache_s) == (8, 600.0)
    assert (gpu.cached_slots, gpu.cache_s) == (32, 600.0)
    assert EngineSettings(cache_s=0.0, cached_slots=5).sizes(Device.CUDA).cached_slots == 0
    assert (cpu.draft_tokens, gpu.draft_tokens) == (15, 15)
    assert (cpu.draft_model, gpu.draft_model) == (None, None)
    assert EngineSettings(draft_tokens=0).sizes(Device.CUDA).draft_tokens == 0
    assert (cpu.draft_vocab_size, gpu.draft_vocab_size) == (None, 65_536)
    own = EngineSettings(
        slots=5,
        pass_tokens=99,
        chunk_tokens=64,
        page_tokens=7,
        kv_tokens=700,
        max_context_tokens=50,
        cached_slots=0,
        cache_s=60.0,
        draft_tokens=15,
        draft_model="mtp",
        draft_vocab_size=5000,
    )
    assert own.sizes(Device.CPU) == own.sizes(Device.CUDA)
    assert own.sizes(Device.CPU) == Sizes(
        slots=5,
        pass_tokens=99,
        chunk_tokens=64,
        page_tokens=7,
        kv_tokens=700,
        max_context_tokens=50,
        cached_slots=0,
        cache_s=60.0,
        draft_tokens=15,
        draft_model="mtp",
        draft_vocab_size=5000,
    )


def test_the_device_comes_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text('[engine]\ndevice = "cuda"\nkernel_cache = "/var/cache/kernels"\n')
    from_file = load(EngineSettings, "engine", file=file, environ={}, flags={})
    assert (from_file.device, from_file.kernel_cache) == (Device.CUDA, Path("/var/cache/kernels"))
    environ = {"SPARKLE_ENGINE_DEVICE": "cpu"}
    assert load(EngineSettings, "engine", file=file, environ=environ, flags={}).device is Device.CPU
    flags = {"device": "auto"}
    assert load(EngineSettings, "engine", file=file, environ=environ, flags=flags).device is Device.AUTO
    with pytest.raises(ConfigError, match="--device is 'gpu' but must be one of auto, cpu, cuda"):
        load(EngineSettings, "engine", environ={}, flags={"device": "gpu"})


@pytest.mark.parametrize(
    ("wanted", "kv_tokens", "model_tokens", "context"),
    [(None, 1000, 500, 500), (None, 100, 500, 96), (200, 1000, 500, 200), (900, 1000, 500, 500)],
)
def test_context_is_the_least_limit(
    wanted: int | None, kv_tokens: int, model_tokens: int, context: int
) -> None:
    settings = EngineSettings(max_context_tokens=wanted, kv_tokens=kv_tokens)
    assert settings.sizes(Device.CPU).context_tokens(model_tokens) == context


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (5, 4), (64, 4)])
def test_threads_leave_a_core_to_the_others(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allowed(_: int) -> set[int]:
        return set(range(cores))

    monkeypatch.setattr(os, "sched_getaffinity", allowed)
    assert EngineSettings().compute_threads() == threads
    assert EngineSettings(threads=3).compute_threads() == 3


def test_default_model_is_inside_the_package() -> None:
    assert default_model().parts[-3:] == ("sparkle", "checkpoints", "sparkle-tiny")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 2), (None, 1)])
def test_where_there_is_no_affinity_the_cores_count(
    cores: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert EngineSettings().compute_threads() == threads

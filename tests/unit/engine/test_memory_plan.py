"""The memory plan's arithmetic on the sizes of Qwen3.8-27B and one H200, and its refusals.

What a page, a slot and the weights take is held against the tensors in tests/engine/test_loaded_gpu.py.
"""

from __future__ import annotations

import pytest

from sparkle.engine.memory_plan import MemoryPlan, Needs, plan_memory, workspace_bytes
from sparkle.engine.settings import Device, EngineSettings
from sparkle.errors import ConfigError
from sparkle.model.shapes import shape_27b

H200_BYTES = 149_557_477_376
"""What is free of one H200 once torch has made its context."""
PAGE_BYTES = 64 * 34_816
SLOT_BYTES = 198_131_712
WEIGHTS_BYTES = 28_630_057_344


def plan(settings: EngineSettings, *, free_bytes: int = H200_BYTES) -> MemoryPlan:
    sizes = settings.sizes(Device.CUDA)
    needs = Needs(
        weights_bytes=WEIGHTS_BYTES,
        slot_bytes=SLOT_BYTES,
        page_bytes=PAGE_BYTES,
        workspace_bytes=workspace_bytes(shape_27b(), sizes, graph_rows=127),
    )
    return plan_memory(shape_27b(), sizes, needs, device="an H200", free_bytes=free_bytes)


def test_an_h200_holds_over_two_million_tokens_and_one_whole_conversation() -> None:
    made = plan(EngineSettings())
    assert (made.slots, made.cached_slots, made.page_tokens) == (64, 32, 64)
    assert made.kv_tokens >= 2_200_000 > shape_27b().max_context_tokens
    assert made.total_bytes <= H200_BYTES
    # not one page more would have fitted
    assert made.total_bytes + PAGE_BYTES > H200_BYTES


def test_a_pass_has_room_for_its_widest_rows_and_the_longest_context() -> None:
    sizes = EngineSettings().sizes(Device.CUDA)
    room = workspace_bytes(shape_27b(), sizes, graph_rows=127)
    gate_up = 8448 * 34_816 * 2
    one_layers_keys_and_values = 2 * 262_144 * 1024
    # gate and up, their product, the residual; FP8 and bfloat16 keys and values; logits of all slots
    assert room > 2 * gate_up + 3 * one_layers_keys_and_values + 4 * 248_320 * (127 + 64)
    assert room < 12e9


def test_set_tokens_are_all_that_is_taken() -> None:
    made = plan(EngineSettings(kv_tokens=100_000, slots=2, cached_slots=3))
    assert made.num_pages == 1562
    assert made.kv_tokens == 99_968
    assert made.kv_bytes == 1562 * PAGE_BYTES
    assert made.state_bytes == 5 * SLOT_BYTES
    assert plan(EngineSettings(slots=2, cached_slots=3, cache_s=0.0)).state_bytes == 2 * SLOT_BYTES


def test_less_context_is_possible_with_less_memory() -> None:
    free = WEIGHTS_BYTES + 96 * SLOT_BYTES + 9 * 10**9
    with pytest.raises(ConfigError, match="262,144 KV tokens; lower max_context_tokens"):
        plan(EngineSettings(), free_bytes=free)
    assert plan(EngineSettings(max_context_tokens=8192), free_bytes=free).kv_tokens >= 8192


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        (
            EngineSettings(kv_tokens=4_000_000),
            "4,000,000 KV tokens; lower kv_tokens, slots, cached_slots or pass_tokens",
        ),
        (EngineSettings(pass_tokens=300_000), "for a pass of 300,000 tokens"),
        (EngineSettings(slots=128, kv_tokens=3_000_000), "31.7 GB for 160 slots"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(settings: EngineSettings, way_out: str) -> None:
    with pytest.raises(ConfigError, match=way_out) as caught:
        plan(settings)
    assert str(caught.value).startswith("an H200 has 149.6 GB of memory free but ")
    assert "28.6 GB for weights" in str(caught.value)


def test_the_weights_alone_can_be_too_much() -> None:
    with pytest.raises(ConfigError, match=r"has 24\.0 GB of memory free"):
        plan(EngineSettings(slots=1, max_context_tokens=1), free_bytes=24 * 10**9)


def test_the_plan_for_people_adds_up() -> None:
    made = plan(EngineSettings(kv_tokens=2_200_000))
    assert made.lines()[:1] == ["memory plan for an H200, 149.6 GB free"]
    text = "\n".join(made.lines())
    assert "  slots        19.0 GB  64 and 32 for checkpoints, of 198.1 MB\n" in text
    assert "  KV pages     76.6 GB  2,200,000 tokens in 34,375 pages of 64\n" in text
    assert text.endswith(f"  in all      {made.total_bytes / 1e9:.1f} GB")

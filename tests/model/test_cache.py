"""What is kept of the sequences: sizes, and wiping one without touching another."""

from __future__ import annotations

import torch

from sparkle.model.cache import SequenceCache
from sparkle.model.config import LayerType, ModelConfig
from tests.model.driver import CPU

CONFIG = ModelConfig(
    name="small",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    layer_types=(LayerType.LINEAR, LayerType.FULL, LayerType.LINEAR),
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    rotary_dim=2,
    rope_theta=1e4,
    mrope_section=(1, 0, 0),
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_dim=3,
    linear_value_dim=5,
    conv_width=4,
    rms_norm_eps=1e-6,
    max_context_tokens=64,
    end_tokens=(0,),
)


def cache(dtype: torch.dtype = torch.float32) -> SequenceCache:
    return SequenceCache(CONFIG, num_pages=7, page_tokens=4, num_slots=3, device=CPU, dtype=dtype)


def test_sizes() -> None:
    pages = 2 * 1 * 7 * 4 * 1 * 6
    states = 2 * 3 * 2 * 3 * 5
    columns = 2 * 3 * 3 * (2 * 3 + 10)
    assert cache().bytes == 4 * (pages + states + columns)
    # the state stays in float32 whatever the rest is in
    assert cache(torch.bfloat16).bytes == 2 * (pages + columns) + 4 * states


def test_zero_slot_wipes_one_slot_in_all_layers() -> None:
    full = cache()
    full.states.fill_(torch.nan)
    full.columns.fill_(torch.nan)
    full.zero_slot(1)
    for part in (full.states, full.columns):
        assert bool((part[:, 1] == 0).all())
        assert bool(part[:, [0, 2]].isnan().all())


def test_zero_pages_wipes_these_pages_in_all_layers() -> None:
    full = cache()
    full.keys.fill_(torch.nan)
    full.values.fill_(torch.nan)
    full.zero_pages([5, 0])
    full.zero_pages([])
    for part in (full.keys, full.values):
        assert bool((part[:, [0, 5]] == 0).all())
        assert bool(part[:, [1, 2, 3, 4, 6]].isnan().all())

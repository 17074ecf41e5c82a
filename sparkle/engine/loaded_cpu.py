"""The model on the CPU: weights, cache and runner in float32. Knows no jobs."""

from __future__ import annotations

from pathlib import Path

import torch

from sparkle.engine.draft_models import chosen_draft_model
from sparkle.engine.memory_plan import MemoryPlan, Needs
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Sizes
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import ConfigError
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.decoder import Decoder
from sparkle.model.fp8_weights import tensor_bytes
from sparkle.model.weights import load_weights


class LoadedCpu:
    """Weights and cache in memory."""

    def __init__(self, directory: Path, config: ModelConfig, sizes: Sizes, watch: Stopwatch) -> None:
        """Raises CheckpointError or one of its kinds, ConfigError where the cache does not fit."""
        device, dtype = torch.device("cpu"), torch.float32
        draft = chosen_draft_model(sizes, config)
        weights, report = load_weights(directory, config, device=device, dtype=dtype)
        watch.lap("weights_s")
        self.sizes = sizes
        self.device = device
        self.skipped = len(report.skipped)
        self._decoder = Decoder(config, weights)
        try:
            self._cache = SequenceCache(
                config,
                num_pages=sizes.num_pages,
                page_tokens=sizes.page_tokens,
                num_slots=sizes.state_slots,
                device=device,
                dtype=dtype,
            )
        # torch has no narrower one for memory that cannot be had
        except RuntimeError:
            raise ConfigError(
                f"no memory for kv_tokens {sizes.kv_tokens}, slots {sizes.slots} and "
                f"cached_slots {sizes.cached_slots}; lower one of them"
            ) from None
        self._helper = None if draft is None else draft.in_float32(self._decoder, weights, self._cache)
        watch.lap("cache_s")
        self.plan = MemoryPlan(
            device="the CPU",
            free_bytes=None,
            needs=Needs(
                weights_bytes=tensor_bytes(weights),
                slot_bytes=(self._cache.states.nbytes + self._cache.columns.nbytes) // sizes.state_slots,
                page_bytes=(self._cache.keys.nbytes + self._cache.values.nbytes) // sizes.num_pages,
                workspace_bytes=0,
            ),
            slots=sizes.slots,
            cached_slots=sizes.cached_slots,
            num_pages=sizes.num_pages,
            page_tokens=sizes.page_tokens,
        )

    def runner(self, sampler: Sampler, *, max_pages: int) -> Runner:
        """What runs passes; `max_pages`: the most that one request holds."""
        return Runner(
            self._decoder,
            self._cache,
            sampler,
            max_pages=max_pages,
            helper=self._helper,
        )

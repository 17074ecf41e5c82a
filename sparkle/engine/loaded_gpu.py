"""The model on a GPU: planned, then weights, cache and graphs in FP8. Knows no jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from sparkle.engine.buckets import graphs_for, widths_for
from sparkle.engine.draft_models import DraftNeeds, chosen_draft_model
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.memory_plan import Needs, plan_memory, workspace_bytes
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Sizes
from sparkle.engine.short_spans import GivenCount
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import ConfigError
from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_loader import Fp8LoadReport, load_fp8_weights
from sparkle.model.fp8_weights import Fp8DecoderWeights, empty_weights, tensor_bytes

PROMPT_ROWS = (128, 256, 512, 1024)
"""Chunks of prompts that are read by a graph: up to the longest, launches would take longer than the GPU."""
_NOWHERE = torch.device("meta")
ReadWeights = Callable[[Path, ModelConfig, torch.device], tuple[Fp8DecoderWeights, Fp8LoadReport]]
"""What `load_fp8_weights` does."""


class LoadedGpu:
    """Weights and cache in the GPU's memory."""

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        sizes: Sizes,
        watch: Stopwatch,
        *,
        device: torch.device,
        name: str,
        free_bytes: int,
        read_weights: ReadWeights = load_fp8_weights,
    ) -> None:
        """`name`: the device's, for people; `free_bytes`: what may be taken of it; `read_weights`: others are
        for measurements without a checkpoint.

        Raises ConfigError where the plan does not fit, before anything is loaded; CheckpointError or one of
        its kinds.
        """
        draft = chosen_draft_model(sizes, config)
        needs = needs_of(config, sizes, None if draft is None else draft.needs())
        self.plan = plan_memory(config, sizes, needs, device=name, free_bytes=free_bytes)
        self.sizes = dataclasses.replace(sizes, kv_tokens=self.plan.kv_tokens)
        watch.lap("plan_s")
        ops.divide_memory_alike()
        try:
            weights, report = read_weights(directory, config, device)
            watch.lap("weights_s")
            self.cache = Fp8Cache(
                config,
                num_pages=self.plan.num_pages,
                page_tokens=sizes.page_tokens,
                num_slots=sizes.state_slots,
                device=device,
            )
            self._decoder = Fp8Decoder(config, weights)
            self._helper = (
                None
                if draft is None
                else draft.in_fp8(self._decoder, weights, self.cache, num_slots=sizes.state_slots)
            )
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"{name} had less memory than the plan found, {self.plan.total_bytes / 1e9:,.1f} GB: "
                "end what else is in it"
            ) from None
        watch.lap("cache_s")
        self.skipped = len(report.skipped)
        self.device = device

    def runner(self, sampler: Sampler, *, max_pages: int, given_count: GivenCount | None = None) -> GpuRunner:
        """What runs passes, its graphs captured and timed; `max_pages`: the most that one request holds.

        `given_count`: see GpuRunner.
        """
        widths = widths_for(self.sizes.draft_tokens)
        runner = GpuRunner(
            self._decoder,
            self.cache,
            sampler,
            num_slots=self.sizes.slots,
            max_pages=max_pages,
            widths=widths,
            prompt_rows=PROMPT_ROWS,
            helper=self._helper,
            given_count=given_count,
        )
        if len(widths) > 1:
            # with one there is nothing to choose
            runner.time_passes()
        return runner


def needs_of(config: ModelConfig, sizes: Sizes, draft: DraftNeeds | None = None) -> Needs:
    """What model and draft model take with these sizes; nothing is allocated. Raises as `empty_weights`."""
    weights = empty_weights(config, _NOWHERE)
    one = Fp8Cache(config, num_pages=1, page_tokens=sizes.page_tokens, num_slots=1, device=_NOWHERE)
    buckets = graphs_for(sizes.slots, widths_for(sizes.draft_tokens), guesses=draft is not None)
    graph_rows = sum(bucket.rows for bucket in buckets)
    draft = draft or DraftNeeds()
    # each graph keeps what the draft model follows; a whole chunk has it twice while it is put together
    followed = draft.row_bytes * (graph_rows + sum(PROMPT_ROWS) + 2 * sizes.pass_tokens)
    return Needs(
        weights_bytes=tensor_bytes(weights) + draft.weights_bytes,
        # of the draft model one slot more, which takes what nobody keeps
        slot_bytes=one.state_bytes + draft.slot_bytes,
        page_bytes=one.kv_bytes,
        workspace_bytes=workspace_bytes(config, sizes, graph_rows=graph_rows) + followed + draft.slot_bytes,
    )

"""Copying and wiping slots and pages of the 27B cache on the GPU, beside the time to move their bytes.

    python -m bench.checkpoints

What a checkpoint costs: a copy when it is taken or gone on from, a wiped slot and wiped pages when it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bench.gpu_timing import READ_BYTES_PER_S, Figure, print_figures, replays_us
from bench.record import commit
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.shapes import shape_27b

SLOTS, PAGES, PAGE_TOKENS = 8, 600, 64
CONTEXT_PAGES = 33_000 // PAGE_TOKENS


def figures(cache: Fp8Cache) -> Iterator[Figure]:
    """Launches from Python, as the engine does it; slots and pages that no cache holds any more."""
    slot_bytes, page_bytes = cache.state_bytes / SLOTS, cache.kv_bytes / PAGES
    pages = list(range(CONTEXT_PAGES))
    yield figure("slot_copy_us", lambda: cache.copy_slot(0, SLOTS - 1), 2 * slot_bytes)
    yield figure("slot_wipe_us", lambda: cache.zero_slot(SLOTS - 1), slot_bytes)
    yield figure("page_copy_us", lambda: cache.copy_page(0, PAGES - 1), 2 * page_bytes)
    yield figure("pages_wipe_33k_us", lambda: cache.zero_pages(pages), CONTEXT_PAGES * page_bytes)


def figure(case: str, launch: Callable[[], None], moved_bytes: float) -> Figure:
    """The floor is to move the bytes once."""
    value, spread = replays_us(launch, replays=21)
    floor = moved_bytes / READ_BYTES_PER_S * 1e6
    return Figure(case=case, value=value, unit="us", floor=floor, spread=spread)


def main() -> None:
    """Print a table and the rows."""
    cache = Fp8Cache(
        shape_27b(),
        num_pages=PAGES,
        page_tokens=PAGE_TOKENS,
        num_slots=SLOTS,
        device=torch.device("cuda"),
    )
    print_figures(figures(cache), commit=commit())


if __name__ == "__main__":
    main()

"""Attention asks for pages while the kernel in front writes to them: of new tokens it reads what is new."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels.qkv_write import qkv_write
from sparkle.kernels.verify_attention import verify_attention
from tests.kernels.paged_inputs import PagedCase, paged_inputs
from tests.kernels.spans import bounds_of
from tests.kernels.test_qkv_write import EPS, inputs_of

NAN = 0x7F
ROUNDS = 8


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 8, 16])
def test_new_tokens_are_waited_for(gpu: torch.device, width: int) -> None:
    case = PagedCase.of_27b((4097, 63, 700), (width, 1, width))
    inputs = paged_inputs(case, seed=7).on(gpu)
    pages = inputs.key_pages, inputs.value_pages
    cells = _new_cells(inputs.page_tables, inputs.span_starts, inputs.contexts)
    written = inputs_of(len(cells), heads=24, kv_heads=4, dim=256)
    query, key, value, *rest = (part.to(gpu) for part in written.arguments(*pages)[:6])
    query_norm, key_norm, table = rest

    def spoil() -> None:
        for part in pages:
            part.view(torch.uint8).flatten(0, 1).index_fill_(0, cells, NAN)

    def write() -> Tensor:
        return qkv_write(query, key, value, query_norm, key_norm, table, *pages, cells, eps=EPS)

    def attend(turned: Tensor) -> Tensor:
        where = inputs.page_tables, inputs.span_starts, inputs.contexts
        return verify_attention(turned, *pages, *where, width=width, scale=0.1)

    turned = write()
    torch.cuda.synchronize()
    wanted = attend(turned)
    assert wanted.isfinite().all()
    graph = torch.cuda.CUDAGraph()
    got: list[Tensor] = []
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            spoil()
            got.append(attend(write()))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(result, wanted) for result in got)


def _new_cells(tables: Tensor, starts: Tensor, contexts: Tensor) -> Tensor:
    """Where each row's key and value are kept, int64 [T], pages of 64 tokens."""
    places = [
        torch.arange(stop - start, device=tables.device) + contexts[span]
        for span, (start, stop) in enumerate(bounds_of(starts))
    ]
    cells = [tables[span, place // 64].long() * 64 + place % 64 for span, place in enumerate(places)]
    return torch.cat(cells)

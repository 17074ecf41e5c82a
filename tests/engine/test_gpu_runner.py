"""The runner of the FP8 decoder: whatever the cuts, widths and neighbours, each answer is its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch

from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.plan import PassPlan, Span, Upkeep
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import Device, EngineSettings, Sizes
from sparkle.engine.short_spans import GivenCount
from sparkle.model.config import LayerType, ModelConfig
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Bundle, engine_around, max_pages
from tests.engine.history_helper import HistoryHelper
from tests.engine.history_model import HistoryModel, TokenCache, answer_to
from tests.engine.small_model import CONTEXT_TOKENS, small_config

VOCAB = 211
END = 3


def config() -> ModelConfig:
    return small_config(VOCAB, (END,))


def sizes(*, slots: int = 4, pass_tokens: int = 40, page_tokens: int = 8, kv_tokens: int = 1024) -> Sizes:
    settings = EngineSettings(
        slots=slots,
        pass_tokens=pass_tokens,
        # none of the prompts is long, so that they are read beside each other
        chunk_tokens=1000,
        page_tokens=page_tokens,
        kv_tokens=kv_tokens,
    )
    return settings.sizes(Device.CPU)


class Rig:
    """A runner around the history model; `right` says how well its helper guesses, None is without one."""

    def __init__(
        self,
        of: Sizes,
        widths: Sequence[int],
        prompt_rows: Sequence[int] = (),
        *,
        buckets: Sequence[Bucket] | None = None,
        right: Callable[[Random], bool] | None = None,
        given_count: GivenCount | None = None,
    ) -> None:
        self.model = HistoryModel(VOCAB)
        self.cache = TokenCache(
            config(), num_pages=of.num_pages, page_tokens=of.page_tokens, num_slots=of.state_slots
        )
        helper = right and HistoryHelper(self.model, VOCAB, num_slots=of.state_slots, right=right)
        self.runner = GpuRunner(
            self.model,
            self.cache,
            Sampler(VOCAB),
            num_slots=of.slots,
            max_pages=max_pages(config(), of),
            widths=widths,
            prompt_rows=prompt_rows,
            buckets=buckets,
            helper=helper,
            given_count=given_count,
        )


def rig_and_engine(
    tokenizer: Tokenizer,
    of: Sizes,
    widths: Sequence[int] = (1, 4, 8, 16),
    prompt_rows: Sequence[int] = (),
) -> tuple[Rig, Bundle]:
    rig = Rig(of, widths, prompt_rows)
    return rig, engine_around(rig.runner, config(), tokenizer, of)


def jobs(count: int) -> list[Job]:
    """Prompts of many lengths, answers that the end token does not end."""
    found: list[Job] = []
    seed = 0
    while len(found) < count:
        seed += 1
        prompt = [(seed * 37 + place * 11) % VOCAB for place in range(1 + seed * 7 % 60)]
        length = 3 + seed % 20
        if END not in answer_to(prompt, length, VOCAB):
            found.append(Job(prompt_tokens=prompt, max_tokens=length, sampling=GREEDY))
    return found


def expected(job: Job) -> list[int]:
    return answer_to(job.prompt_tokens or [], job.max_tokens, VOCAB)


@pytest.mark.parametrize("widths", [(1,), (1, 16), (1, 4, 8, 16)], ids=str)
@pytest.mark.parametrize(
    "of",
    [
        sizes(),
        sizes(slots=1, pass_tokens=2),
        sizes(slots=3, pass_tokens=5, page_tokens=3),
        sizes(slots=7, pass_tokens=23, page_tokens=1),
        sizes(slots=16, pass_tokens=200, page_tokens=16),
        sizes(slots=20, pass_tokens=1000, kv_tokens=400),
    ],
    ids=["usual", "one token a chunk", "odd", "pages of one", "wide", "few pages"],
)
@pytest.mark.parametrize("prompt_rows", [(), (24, 64)], ids=["whole", "pieces"])
def test_every_answer_is_its_own(
    tokenizer: Tokenizer, of: Sizes, widths: Sequence[int], prompt_rows: Sequence[int]
) -> None:
    rig, built = rig_and_engine(tokenizer, of, widths, prompt_rows)
    asked = jobs(24)
    for job, answer in zip(asked, built.run(*asked), strict=True):
        assert answer.tokens == expected(job)
    assert rig.model.verified, "no pass took a graph"


def test_a_cancelled_answer_leaves_no_trace_on_its_slot_and_pages(tokenizer: Tokenizer) -> None:
    _, built = rig_and_engine(tokenizer, sizes(slots=2, kv_tokens=160))
    first, second, *rest = jobs(8)
    built.submit(first)
    built.submit(second)
    for job in rest:
        built.step()
        built.step()
        built.engine.cancel(first.id)
        built.submit(job)
        first = job
    while built.engine.has_work:
        built.step()
    assert built.answers[second.id].tokens == expected(second)
    assert built.answers[rest[-1].id].tokens == expected(rest[-1])


def test_chunks_that_fit_a_graph_take_it_and_longer_ones_are_folded_into_first(tokenizer: Tokenizer) -> None:
    rig, built = rig_and_engine(tokenizer, sizes(slots=2, pass_tokens=12))
    talker = Job(prompt_tokens=[5], max_tokens=30, sampling=GREEDY)
    reader = Job(prompt_tokens=list(range(50)), max_tokens=1, sampling=GREEDY)
    answers = built.run(talker, reader)
    assert [answer.tokens for answer in answers] == [expected(talker), expected(reader)]
    # the first pass reads one token and eleven of the long prompt, all in one graph
    assert rig.model.verified[0] == (2, 16, 2)
    assert rig.model.chunks == []
    # with width 1 alone, the same chunks are read outside the graphs
    rig, built = rig_and_engine(tokenizer, sizes(slots=2, pass_tokens=12), (1,))
    answers = built.run(*(job.evolve(id=Job(prompt="a").id) for job in (talker, reader)))
    assert [answer.tokens for answer in answers] == [expected(talker), expected(reader)]
    assert rig.model.chunks == [(11,)] * 4 + [(6,)]
    assert {used for _, _, used in rig.model.verified} == {1}
    assert rig.model.folds == 0


def test_given_buckets_stand_in_place_of_those_of_the_widths() -> None:
    rig = Rig(sizes(), (1, 8), buckets=(Bucket(2, 4),))
    assert drawn(rig, span("a", 0, 0, [9])) == {"a": follows(9)}
    assert rig.model.verified == [(2, 4, 1)]


def test_short_chunks_take_the_smallest_graph_with_room_and_others_none() -> None:
    rig = Rig(sizes(slots=6, pass_tokens=200, kv_tokens=6 * 64), (1,), (40, 32))
    spans = [span(f"r{slot}", slot, 0, [slot] * length) for slot, length in enumerate((17, 9, 33, 2, 3))]
    assert drawn(rig, *spans[:2]) == {one.request: follows(*one.tokens) for one in spans[:2]}
    assert rig.model.in_pieces == [(9, 17)]
    # 38 rows: the larger one
    assert drawn(rig, *spans[2:]) == {one.request: follows(*one.tokens) for one in spans[2:]}
    assert rig.model.in_pieces[1:] == [(2, 3, 33)]
    assert rig.model.chunks == []
    # more prompts than a graph holds, then more rows
    fresh = [span(f"n{slot}", slot, 0, [7, slot]) for slot in (1, 2, 3, 4, 5)]
    assert drawn(rig, *fresh) == {one.request: follows(*one.tokens) for one in fresh}
    assert drawn(rig, span("r0", 0, 17, [8] * 45)) == {"r0": follows(*[0] * 17, *[8] * 45)}
    assert rig.model.chunks == [(2,) * 5, (45,)]
    assert len(rig.model.in_pieces) == 2


def span(
    request: str, slot: int, start: int, tokens: Sequence[int], *, draws: bool = True, pages: int = 8
) -> Span:
    return Span(
        request=request,
        slot=slot,
        start=start,
        tokens=tuple(tokens),
        pages=tuple(range(slot * pages, (slot + 1) * pages)),
        draws=draws,
        fresh=start == 0,
    )


def states(*requests: str) -> dict[str, DrawState]:
    return {request: DrawState(request, GREEDY, 0, [0], VOCAB) for request in requests}


def drawn(rig: Rig, *spans: Span) -> dict[str, int]:
    """What is drawn, slots and pages of new requests having become free just now."""
    fresh = [one for one in spans if one.fresh]
    upkeep = Upkeep(
        wiped_slots=tuple(one.slot for one in fresh),
        wiped_pages=tuple(page for one in fresh for page in one.pages),
    )
    plan = PassPlan(spans=spans, upkeep=upkeep)
    result = rig.runner.run(plan, states(*(one.request for one in spans)))
    assert [token.request for token in result.drawn] == [one.request for one in spans if one.draws]
    return {token.request: token.token for token in result.drawn}


def follows(*tokens: int) -> int:
    return answer_to(tokens, 1, VOCAB)[0]


def test_a_pass_of_short_and_long_spans_draws_in_the_plans_order() -> None:
    rig = Rig(sizes(slots=5, pass_tokens=200, kv_tokens=5 * 64), (1, 4))
    first, second, third = [1, 2, 3, 4, 5, 6], [7], [8] * 30
    found = drawn(rig, span("a", 0, 0, first), span("b", 1, 0, second), span("c", 2, 0, third, draws=False))
    assert found == {"a": follows(*first), "b": follows(*second)}
    assert rig.model.verified == [(1, 1, 1)]
    assert rig.model.chunks == [(6, 30)]
    # next: b and a one token, c another chunk, d a short prompt between them
    found = drawn(
        rig,
        span("c", 2, 30, [9] * 5),
        span("b", 1, 1, [10]),
        span("d", 3, 0, [11, 12, 13]),
        span("a", 0, 6, [14]),
    )
    assert found == {
        "c": follows(*third, *[9] * 5),
        "b": follows(*second, 10),
        "d": follows(11, 12, 13),
        "a": follows(*first, 14),
    }
    assert rig.model.verified[1:] == [(4, 4, 3)]


@pytest.mark.parametrize("tokens", [[1, 2, 3], list(range(1, 21))], ids=["in a graph", "as a chunk"])
def test_what_a_pass_saves_of_a_slot_is_saved_whatever_ran_it(tokens: list[int]) -> None:
    rig = Rig(sizes(slots=3, pass_tokens=200, kv_tokens=3 * 64), (1, 4))
    one = span("a", 0, 0, tokens)
    plan = PassPlan(spans=(one,), upkeep=Upkeep(saved=((0, 2),)))
    assert [token.token for token in rig.runner.run(plan, states("a")).drawn] == [follows(*tokens)]
    # the slot's first request goes on otherwise
    assert drawn(rig, span("a", 0, len(tokens), [50, 51])) == {"a": follows(*tokens, 50, 51)}
    later = dataclasses.replace(span("c", 2, len(tokens), [9]), pages=one.pages, fresh=True)
    result = rig.runner.run(PassPlan(spans=(later,)), states("c"))
    assert [token.token for token in result.drawn] == [follows(*tokens, 9)]


def test_a_long_chunk_after_a_short_one_finds_its_tokens_folded_in() -> None:
    rig = Rig(sizes(slots=2, pass_tokens=200, kv_tokens=128), (1, 4))
    drawn(rig, span("a", 1, 0, [1, 2, 3], draws=False))
    long = list(range(20, 40))
    assert drawn(rig, span("a", 1, 3, long)) == {"a": follows(1, 2, 3, *long)}
    assert rig.model.folds == 1
    # the window is empty now: nothing is to be folded in again
    assert drawn(rig, span("a", 1, 23, [7] * 9)) == {"a": follows(1, 2, 3, *long, *[7] * 9)}
    assert rig.model.folds == 1
    assert drawn(rig, span("a", 1, 32, [8])) == {"a": follows(1, 2, 3, *long, *[7] * 9, 8)}


def test_of_a_span_only_what_is_kept_stays() -> None:
    rig = Rig(sizes(slots=2, pass_tokens=200, kv_tokens=128), (1, 4))
    drawn(rig, span("a", 0, 0, [1, 2, 3, 4]))
    rig.runner.windows.keep(0, 2)
    assert drawn(rig, span("a", 0, 2, [5])) == {"a": follows(1, 2, 5)}
    rig.runner.windows.keep(0, 0)
    assert drawn(rig, span("a", 0, 2, [6, 7])) == {"a": follows(1, 2, 6, 7)}
    rig.runner.windows.keep(0, 1)
    long = list(range(20))
    assert drawn(rig, span("a", 0, 3, long)) == {"a": follows(1, 2, 6, *long)}
    with pytest.raises(AssertionError, match="more than were read"):
        rig.runner.windows.keep(0, 1)


def test_what_is_wiped_has_neither_window_nor_state_nor_pages_of_the_one_before() -> None:
    rig = Rig(sizes(slots=2, pass_tokens=200, kv_tokens=128), (1, 4))
    drawn(rig, span("a", 0, 0, [1, 2, 3, 4]))
    for part in (rig.cache.keys, rig.cache.values):
        part.view(torch.uint8).fill_(0x7F)
    for memory in rig.cache.memories:
        memory.states.fill_(float("nan"))
    assert drawn(rig, span("b", 0, 0, [9])) == {"b": follows(9)}
    own = torch.zeros(rig.cache.keys.shape[1], dtype=torch.bool)
    own[:8] = True
    for part in (rig.cache.keys, rig.cache.values):
        assert not part.view(torch.uint8)[:, own].any()
        assert bool((part.view(torch.uint8)[:, ~own] == 0x7F).all())
    for memory in rig.cache.memories:
        assert not memory.states[0].any()
        assert bool(memory.states[1].isnan().all())


def test_more_spans_than_any_graph_holds_take_the_graph_as_far_as_it_goes() -> None:
    """24 spans of up to 16 rows: the short ones go together, the longer ones are read."""
    of = sizes(slots=24, pass_tokens=500, page_tokens=4, kv_tokens=24 * 64)
    rig = Rig(of, (1, 16))
    spans = [span(f"r{slot}", slot, 0, [slot] * (1 + slot % 16), pages=16) for slot in range(24)]
    found = drawn(rig, *spans)
    assert found == {one.request: follows(*one.tokens) for one in spans}
    ((places, width, used),) = rig.model.verified
    assert places * width <= 128
    assert used + len(rig.model.chunks[0]) == 24


def test_the_layers_of_the_test_model_are_of_both_kinds() -> None:
    assert set(config().layer_types) == {LayerType.FULL, LayerType.LINEAR}
    assert max(len(job.prompt_tokens or []) + job.max_tokens for job in jobs(24)) <= CONTEXT_TOKENS

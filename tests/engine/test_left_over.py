"""Once the engine has been idle, nothing of a job is left where passes were computed: memory is searched."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from sparkle.engine.left_over import left_over
from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.settings import OWN_HEAD, Device, EngineSettings, default_model
from sparkle.engine.slot_upkeep import SlotUpkeep
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import read_config
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, SETTINGS, Bundle, bundle, engine_around, max_pages, sampler_for
from tests.engine.small_model import config_for, small_decoder
from tests.engine.test_gpu_runner import Rig, sizes
from tests.engine.test_gpu_runner import config as small_config
from tests.shapes import of_lark, vocabulary

DRAFT_MODELS = {"none": None, "mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
PROMPT_TOKENS = 40


class Clock:
    """Time set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tensors() -> Iterator[Tensor]:
    """Every tensor that is alive."""
    for one in gc.get_objects():
        if type(one) is Tensor:
            yield one


def places_of(sought: bytes) -> int:
    """How many tensors' memory has it."""
    whole = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors() if one.numel()}
    return sum(sought in ctypes.string_at(start, storage.nbytes()) for start, storage in whole.items())


def fp8_engine(draft_model: str | None, device: torch.device, clock: Clock) -> Bundle:
    """The bundled model's, on any device."""
    config, tokenizer = read_config(default_model()), Tokenizer.load(default_model())
    settings = EngineSettings(
        slots=4,
        pass_tokens=256,
        kv_tokens=2048,
        max_context_tokens=512,
        cache_s=0.0,
        draft_tokens=7 if draft_model else 0,
        draft_model=draft_model,
    )
    made = LoadedGpu(
        default_model(),
        config,
        settings.sizes(Device.CUDA),
        Stopwatch(),
        device=device,
        name="a GPU",
        free_bytes=10**10,
    )
    sampler = sampler_for(config, tokenizer, made.sizes, device)
    runner = made.runner(sampler, max_pages=max_pages(config, made.sizes))
    return engine_around(runner, config, tokenizer, made.sizes, clock=clock)


def small_engine(tokenizer: Tokenizer, clock: Clock) -> Bundle:
    """The same runner around a stand-in for the model: prompts in pieces, answers by other graphs."""
    of = sizes(slots=2)
    return engine_around(Rig(of, (1, 16), (64,)).runner, small_config(), tokenizer, of, clock=clock)


def prompt(seed: int = 0) -> list[int]:
    """Each seed's begins with other tokens."""
    return [(37 * place + seed) % 199 + 10 for place in range(PROMPT_TOKENS)]


def needle(seed: int = 0) -> bytes:
    """What a tensor of the prompt holds, int64."""
    return b"".join(token.to_bytes(8, "little") for token in prompt(seed)[:12])


def jobs(seed: int = 0) -> list[Job]:
    """Two that have the prompt which is searched for, one of them with penalties."""
    penalised = Sampling(temperature=1.0, frequency_penalty=0.1, presence_penalty=0.1, seed=5)
    return [
        Job(prompt_tokens=prompt(seed), max_tokens=9, sampling=GREEDY),
        Job(prompt_tokens=prompt(seed), max_tokens=9, sampling=penalised),
    ]


def test_an_engine_forgets_a_second_after_its_last_pass(tokenizer: Tokenizer) -> None:
    clock = Clock()
    built = small_engine(tokenizer, clock)
    (first,) = built.run(jobs()[0])
    assert places_of(needle()), "the search finds nothing at all"
    assert built.engine.idle_s() == 1.0
    clock.now_s = 0.9
    built.step()
    assert places_of(needle())
    clock.now_s = 1.0
    assert built.engine.has_work
    built.step()
    assert places_of(needle()) == 0
    assert built.engine.idle_s() == 599.0, "until its checkpoint's time is over"
    assert built.run(jobs()[0])[0].tokens == first.tokens, "it goes on as before"


def test_a_job_that_came_meanwhile_goes_first_and_what_a_cancelled_one_left_goes_too(
    tokenizer: Tokenizer,
) -> None:
    clock = Clock()
    built = small_engine(tokenizer, clock)
    built.run(jobs(seed=50)[0])
    clock.now_s = 5.0
    late = jobs(seed=50)[0]
    built.submit(late)
    built.step()
    assert places_of(needle(seed=50))
    built.engine.cancel(late.id)
    while built.engine.has_work:
        built.step()
    assert built.engine.idle_s() == 1.0
    clock.now_s = 6.0
    built.step()
    assert places_of(needle(seed=50)) == 0


def test_masks_are_overwritten_but_for_that_of_answers_to_come(tokenizer: Tokenizer) -> None:
    config, clock = config_for(tokenizer), Clock()
    built = bundle(small_decoder(tokenizer), tokenizer, SETTINGS, clock=clock)
    job = jobs()[1]
    shape = of_lark("start: /[a-c]{3,9}/", vocabulary(config.vocab_size, config.end_tokens))
    built.run(job, shapes={job.id: shape})
    words = -(-config.vocab_size // 32)
    masks = [one for one in tensors() if one.dtype is torch.int32 and one.shape[1:] == (words,)]
    assert any(one[1:].any() for one in masks)
    first = [one[0].clone() for one in masks]
    clock.now_s = 1.0
    built.step()
    assert not any(one[1:].any() for one in masks)
    assert all(torch.equal(one[0], kept) for one, kept in zip(masks, first, strict=True))


def test_what_the_draft_model_holds_for_nobody_is_zeroed() -> None:
    of = sizes(slots=2)
    cache = Rig(of, (1,)).cache
    rows = torch.ones(cache.num_slots + 1, 3)
    SlotUpkeep(cache, lambda slot: (rows[slot],), max_pages=1).forget()
    assert torch.equal(rows.sum(dim=1), torch.tensor([3.0] * cache.num_slots + [0.0]))


def test_what_no_tensor_holds_is_left_over_and_all_of_the_graphs() -> None:
    blocks = [
        {"address": 100, "size": 50, "state": "active_allocated"},
        {"address": 150, "size": 30, "state": "inactive"},
        {"address": 180, "size": 20, "state": "active_pending_free"},
    ]
    segments = [
        {"address": 100, "total_size": 100, "segment_pool_id": (0, 0), "blocks": blocks},
        {"address": 300, "total_size": 100, "segment_pool_id": (0, 7), "blocks": blocks},
        {"address": 500, "total_size": 100, "segment_pool_id": (0, 8), "blocks": blocks[:1]},
    ]
    assert list(left_over(segments, (0, 7))) == [(150, 30), (300, 100)]


def device_memory() -> Iterator[bytes]:
    """All that torch has taken of the GPU's."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.synchronize()
    # torch has no types for it
    for segment in cast("list[dict[str, Any]]", torch.cuda.memory_snapshot()):  # type: ignore[no-untyped-call]
        size = segment["total_size"]
        copied = ctypes.create_string_buffer(size)
        address, count = ctypes.c_uint64(segment["address"]), ctypes.c_size_t(size)
        assert driver.cuMemcpyDtoH_v2(copied, address, count) == 0
        yield copied.raw


@pytest.mark.gpu
@pytest.mark.parametrize("draft_model", DRAFT_MODELS)
def test_nothing_is_left_on_a_gpu(draft_model: str, gpu: torch.device) -> None:
    clock, seed = Clock(), [*DRAFT_MODELS].index(draft_model)
    sought = needle(seed)
    built = fp8_engine(DRAFT_MODELS[draft_model], gpu, clock)
    first = [answer.tokens for answer in built.run(*jobs(seed))]
    assert any(sought in memory for memory in device_memory()), "the search finds nothing at all"
    clock.now_s = 1.0
    built.step()
    assert not any(sought in memory for memory in device_memory())
    assert [answer.tokens for answer in built.run(*jobs(seed))] == first, "graphs need none of it"

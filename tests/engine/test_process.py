"""The engine process as the worker sees it: a real child with the bundled model, over the socket."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from sparkle.engine.client import EngineProcess
from sparkle.engine.frames import Accepted, Cached, Delta, Failed, Finished, Frame, Submit
from sparkle.engine.settings import UNUSABLE_CODE, Device, EngineSettings, default_model
from sparkle.errors import ConfigError, EngineExited, FailureCode
from sparkle.schemas import codec
from sparkle.schemas.job import Job, Sampling, Turn

SLOTS = 4
SETTINGS = EngineSettings(device=Device.CPU, slots=SLOTS, threads=1, kv_tokens=8192)
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncGenerator[EngineProcess]:
    """A running engine for all tests that leave it running."""
    process = EngineProcess(default_model(), SETTINGS)
    await process.start()
    yield process
    await process.stop()


@pytest_asyncio.fixture
async def mortal() -> AsyncGenerator[EngineProcess]:
    """A running engine for a test that ends it."""
    process = EngineProcess(default_model(), SETTINGS)
    await process.start()
    yield process
    await process.stop()


def submit(job: Job) -> Submit:
    return Submit(job=job.id, payload=codec.encode(job))


def chat(text: str = "hello", max_tokens: int = 12) -> Job:
    return Job(messages=[Turn(role="user", content=text)], max_tokens=max_tokens, sampling=Sampling(seed=1))


async def frames_until_end(engine: EngineProcess, *jobs: str) -> dict[str, list[Frame]]:
    """All frames, by job, until every one of `jobs` has ended."""
    found: dict[str, list[Frame]] = {job: [] for job in jobs}
    open_jobs = set(jobs)
    async for frame in engine.frames:
        if isinstance(frame, Cached):
            continue
        assert isinstance(frame, Accepted | Delta | Finished | Failed)
        found.setdefault(frame.job, []).append(frame)
        if isinstance(frame, Finished | Failed):
            open_jobs.discard(frame.job)
            if not open_jobs:
                break
    return found


@module_loop
async def test_ready_says_what_there_is_room_for(engine: EngineProcess) -> None:
    ready = engine.ready
    assert (ready.model, ready.slots, ready.kv_tokens) == ("sparkle-tiny", 4, 8192)
    assert 0 < ready.max_context_tokens <= 8192
    assert ready.load_s > 0.0
    assert ready.memory[0] == "memory plan for the CPU"
    assert "8,192 tokens in 512 pages of 16" in "\n".join(ready.memory)


@module_loop
async def test_several_jobs_at_once_are_answered(engine: EngineProcess) -> None:
    jobs = [chat(text, max_tokens=5 + length) for length, text in enumerate(["a", "b", "c", "d", "e", "f"])]
    for job in jobs:
        await engine.submit(submit(job))
    found = await frames_until_end(engine, *(job.id for job in jobs))
    for job in jobs:
        accepted, *deltas, finished = found[job.id]
        assert isinstance(accepted, Accepted)
        assert isinstance(finished, Finished)
        tokens = [token for delta in deltas if isinstance(delta, Delta) for token in delta.tokens]
        assert 0 < len(tokens) == finished.completion_tokens <= job.max_tokens
        assert accepted.prompt_tokens == finished.prompt_tokens > 5


@module_loop
async def test_a_message_that_is_no_job_fails_alone(engine: EngineProcess) -> None:
    good = chat()
    await engine.submit(Submit(job="not-a-job", payload=b"\xc1"))
    await engine.submit(submit(good))
    found = await frames_until_end(engine, "not-a-job", good.id)
    (failed,) = found["not-a-job"]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.INVALID_JOB, False)
    assert isinstance(found[good.id][-1], Finished)


@module_loop
async def test_a_prompt_over_the_context_is_refused(engine: EngineProcess) -> None:
    job = Job(prompt_tokens=[1] * engine.ready.max_context_tokens)
    await engine.submit(submit(job))
    (failed,) = (await frames_until_end(engine, job.id))[job.id]
    assert isinstance(failed, Failed)
    assert failed.code is FailureCode.TOO_LONG


@module_loop
async def test_a_follow_up_is_not_read_again_until_its_conversation_has_ended(engine: EngineProcess) -> None:
    async def cached_tokens() -> int:
        job = chat("which alerts matter? " * 9).evolve(tenant="t", conversation="c")
        await engine.submit(submit(job))
        (end,) = [
            one for one in (await frames_until_end(engine, job.id))[job.id] if isinstance(one, Finished)
        ]
        return end.cached_tokens

    # the first has nothing, the second takes what it has in common, the third goes on from there
    found = [await cached_tokens() for _ in range(3)]
    assert found[0] == 0 < found[2]
    engine.end_conversation("t", "c")
    assert await cached_tokens() == 0


@module_loop
async def test_a_cancelled_job_goes_quiet_and_its_slot_serves_others(engine: EngineProcess) -> None:
    # more than there are slots, each far longer than this test
    endless = [chat(max_tokens=4000) for _ in range(SLOTS)]
    for job in endless:
        await engine.submit(submit(job))
    async for frame in engine.frames:
        if isinstance(frame, Delta):
            break
    for job in endless:
        engine.cancel(job.id)
    after = chat()
    await engine.submit(submit(after))
    found = await frames_until_end(engine, after.id)
    assert isinstance(found[after.id][-1], Finished)
    first = await frames_until_end(engine, *[(await _submitted(engine)).id])
    assert not {job.id for job in endless} & set(first), "a cancelled job still writes"


async def _submitted(engine: EngineProcess) -> Job:
    job = chat()
    await engine.submit(submit(job))
    return job


@module_loop
async def test_the_process_dumps_no_core_and_leaves_ctrl_c_to_the_worker(engine: EngineProcess) -> None:
    assert resource.prlimit(engine.pid, resource.RLIMIT_CORE) == (0, 0)
    os.kill(engine.pid, signal.SIGINT)
    job = await _submitted(engine)
    assert isinstance((await frames_until_end(engine, job.id))[job.id][-1], Finished)


async def test_stop_ends_the_process_and_the_frames(mortal: EngineProcess) -> None:
    await mortal.submit(submit(chat(max_tokens=4000)))
    reader = asyncio.create_task(_read_all(mortal))
    await mortal.stop()
    await reader
    assert mortal.exited.is_set()
    assert mortal.returncode == 0
    mortal.cancel("anything")
    with pytest.raises(EngineExited):
        await mortal.submit(submit(chat()))


async def test_a_killed_process_is_told_to_reader_and_sender(mortal: EngineProcess) -> None:
    await mortal.submit(submit(chat(max_tokens=4000)))
    os.kill(mortal.pid, signal.SIGKILL)
    with pytest.raises(EngineExited, match="ended by SIGKILL"):
        await _read_all(mortal)
    assert mortal.exited.is_set()
    with pytest.raises(EngineExited, match="ended by SIGKILL"):
        await mortal.submit(submit(chat()))


async def test_a_process_that_takes_nothing_in_can_be_cancelled_on_and_stopped(mortal: EngineProcess) -> None:
    os.kill(mortal.pid, signal.SIGSTOP)
    # far more than the socket holds
    stuck = asyncio.create_task(mortal.submit(Submit(job="a", payload=b"x" * 8_000_000)))
    await asyncio.wait({stuck}, timeout=0.05)
    assert not stuck.done()
    mortal.cancel("a")
    async with asyncio.timeout(10.0):
        await mortal.stop(grace_s=0.05)
        with pytest.raises(EngineExited):
            await stuck
    assert mortal.returncode == -signal.SIGKILL


@pytest.mark.parametrize("jobs", [0, 1], ids=["idle", "running"])
async def test_sigterm_ends_it_between_two_passes(mortal: EngineProcess, jobs: int) -> None:
    for _ in range(jobs):
        await mortal.submit(submit(chat(max_tokens=4000)))
    os.kill(mortal.pid, signal.SIGTERM)
    with pytest.raises(EngineExited, match="ended with code 0"):
        await _read_all(mortal)


async def refusal(engine: EngineProcess) -> str:
    """What the engine says in place of Ready, with its exit code."""
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    assert engine.returncode == UNUSABLE_CODE == 2
    return str(caught.value)


async def test_a_directory_that_is_no_model_is_one_sentence_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = await refusal(EngineProcess(tmp_path, SETTINGS))
    assert told == "config.json cannot be read: No such file or directory"
    assert capfd.readouterr() == ("", "")


async def test_names_that_no_terminal_can_show_are_told_as_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5_text", "a\\ud800\\n\\u001b[31m": 1}')
    told = await refusal(EngineProcess(tmp_path, SETTINGS))
    assert told == r"a\ud800\n\x1b[31m is a field that this model does not have"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
async def test_a_gpu_that_is_not_there_is_told_with_the_code() -> None:
    told = await refusal(EngineProcess(default_model(), EngineSettings(device=Device.CUDA)))
    assert told.startswith("sparkle serves on one NVIDIA H200")
    assert "found no GPU; use --device cpu" in told


async def test_the_phases_of_a_start_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    engine = EngineProcess(default_model(), SETTINGS)
    ready = await engine.start()
    await engine.stop()
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [event["event"] for event in events] == ["memory_plan", "start_phases"]
    phases = {name: value for name, value in events[1].items() if name.endswith("_s") and name != "time_s"}
    assert list(phases) == ["import_s", "weights_s", "cache_s", "text_s", "graphs_s"]
    assert phases["import_s"] > 0.0
    assert sum(phases.values()) == pytest.approx(ready.load_s, rel=0.1)


async def test_a_start_that_takes_too_long_is_given_up() -> None:
    engine = EngineProcess(default_model(), SETTINGS, start_timeout_s=0.01)
    with pytest.raises(EngineExited, match=r"not ready after 0\.01 s"):
        await engine.start()
    assert engine.returncode == -signal.SIGKILL


async def _read_all(engine: EngineProcess) -> None:
    async for _ in engine.frames:
        pass

"""The step loop: orders are followed between passes, and its end is asked for or raised."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from sparkle.engine.frames import Accepted, CancelRequest, Delta, Failed, Finished, Frame, Shutdown
from sparkle.engine.intake import Broken, Order, Prepared
from sparkle.engine.process import serve
from sparkle.errors import EngineError, FailureCode
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, bundle
from tests.engine.scripted_model import ScriptedModel
from tests.engine.small_model import config_for


class Loop:
    """A step loop with a model that counts upwards; `send` puts a Shutdown after the end of a job."""

    def __init__(self, tokenizer: Tokenizer, *orders: Order) -> None:
        model = ScriptedModel(config_for(tokenizer).vocab_size, lambda token, _: token + 1)
        self.engine = bundle(model, tokenizer).engine
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self.sent: list[Frame] = []
        for order in orders:
            self.orders.put(order)

    def send(self, frames: Sequence[Frame]) -> None:
        self.sent += frames
        if any(isinstance(frame, Finished) for frame in frames):
            self.orders.put(Shutdown())

    def run(self) -> None:
        serve(self.engine, self.orders, self.send)


def job(max_tokens: int = 3) -> Job:
    return Job(prompt_tokens=[5], max_tokens=max_tokens, sampling=GREEDY)


def test_a_job_is_accepted_and_answered(tokenizer: Tokenizer) -> None:
    one = job()
    loop = Loop(tokenizer, Prepared(one, [5]))
    loop.run()
    assert loop.sent[0] == Accepted(job=one.id, prompt_tokens=1)
    deltas = [frame for frame in loop.sent if isinstance(frame, Delta)]
    assert [token for delta in deltas for token in delta.tokens] == [6, 7, 8]
    assert isinstance(loop.sent[-1], Finished)


def test_a_failed_prompt_is_passed_on_and_the_loop_goes_on(tokenizer: Tokenizer) -> None:
    failed = Failed(job="a", code=FailureCode.INVALID_JOB, message="m", retryable=False)
    loop = Loop(tokenizer, failed, Prepared(job(), [5]))
    loop.run()
    assert loop.sent[0] == failed
    assert isinstance(loop.sent[-1], Finished)


def test_a_cancelled_job_is_not_run(tokenizer: Tokenizer) -> None:
    gone, stays = job(), job()
    loop = Loop(tokenizer, Prepared(gone, [5]), CancelRequest(job=gone.id), Prepared(stays, [5]))
    loop.run()
    written = {frame.job for frame in loop.sent if isinstance(frame, Delta | Finished)}
    assert written == {stays.id}


def test_a_shutdown_ends_it_with_jobs_running(tokenizer: Tokenizer) -> None:
    loop = Loop(tokenizer, Prepared(job(max_tokens=100), [5]), Shutdown())
    loop.run()
    assert not any(isinstance(frame, Delta) for frame in loop.sent)


def test_frames_that_cannot_be_read_end_it_with_their_error(tokenizer: Tokenizer) -> None:
    loop = Loop(tokenizer, Prepared(job(), [5]), Broken(EngineError("frame of an unknown kind")))
    with pytest.raises(EngineError, match="unknown kind"):
        loop.run()

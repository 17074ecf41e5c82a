"""Frames become orders: prompts beside the loop, cancels in time, and an end that is always told."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import cast

import pytest
from llguidance import LLMatcher

from sparkle.engine.frames import CancelRequest, Failed, Frame, Ready, Shutdown, Submit, encode
from sparkle.engine.intake import SHAPE_THREADS, Broken, Intake, Order, Prepared
from sparkle.errors import (
    EngineError,
    FailureCode,
    GrammarTooComplex,
    InvalidGrammar,
    InvalidMessage,
    UnsupportedSchema,
)
from sparkle.schemas import codec
from sparkle.schemas.job import Job
from sparkle.schemas.shape import RegexShape
from sparkle.text.shape import Shape

WAIT_S = 10.0
HELD_BACK = "hold this one back"


@dataclass
class Prompts:
    """Makes one token a character; holds one prompt back until it is told to go on."""

    go_on: Event = field(default_factory=Event)
    reached: Event = field(default_factory=Event)

    def build(self, job: Job) -> list[int]:
        assert job.prompt is not None
        if job.prompt == HELD_BACK:
            self.reached.set()
            assert self.go_on.wait(WAIT_S)
        if job.prompt == "refuse":
            raise InvalidMessage("messages: refused")
        if job.prompt == "break":
            raise KeyError("the secret")
        return [1] * len(job.prompt)


SHAPE = Shape(compiled=cast(LLMatcher, object()))
"""No grammar is looked into here."""


@dataclass
class Shapes:
    """Gives every job the same one; holds one back, and refuses some."""

    go_on: Event = field(default_factory=Event)

    def shape_of(self, job: Job) -> Shape | None:
        assert isinstance(job.response_format, RegexShape)
        match job.response_format.pattern:
            case "held":
                assert self.go_on.wait(WAIT_S)
            case "unsupported":
                raise UnsupportedSchema("schema: /properties/2/not cannot be enforced; leave it out")
            case "complex":
                raise GrammarTooComplex("schema: has 9 values; at most 8 are served: make it simpler")
            case "invalid":
                raise InvalidGrammar("response_format: cannot be read; mend it")
            case "break":
                raise KeyError("the secret")
            case _:
                pass
        return SHAPE


@dataclass
class Line:
    """The worker's end of the socket, and the intake at the other."""

    worker: socket.socket
    intake: Intake
    prompts: Prompts
    shapes: Shapes

    def send(self, *frames: Frame) -> None:
        self.worker.sendall(b"".join(map(encode, frames)))

    def order(self) -> Order:
        return self.intake.orders.get(timeout=WAIT_S)


@contextmanager
def open_line(prompt_threads: int) -> Generator[Line]:
    worker, engine = socket.socketpair()
    prompts, shapes = Prompts(), Shapes()
    with worker, engine, engine.makefile("rb") as stream:
        intake = Intake(stream, prompts, shapes, prompt_threads=prompt_threads)
        intake.start()
        yield Line(worker, intake, prompts, shapes)
        prompts.go_on.set()
        shapes.go_on.set()
        worker.shutdown(socket.SHUT_RDWR)
        intake.close()


@pytest.fixture
def line() -> Iterator[Line]:
    with open_line(prompt_threads=2) as opened:
        yield opened


def submit(prompt: str, *, pattern: str | None = None) -> tuple[Job, Submit]:
    shape = None if pattern is None else RegexShape(pattern=pattern)
    job = Job(prompt=prompt, response_format=shape)
    return job, Submit(job=job.id, payload=codec.encode(job))


def test_a_job_comes_with_its_prompt(line: Line) -> None:
    job, frame = submit("abc")
    line.send(frame)
    assert line.order() == Prepared(job, [1, 1, 1])


def test_a_long_prompt_does_not_hold_up_a_short_one(line: Line) -> None:
    slow, slow_frame = submit(HELD_BACK)
    quick, quick_frame = submit("ab")
    line.send(slow_frame, quick_frame)
    assert line.order() == Prepared(quick, [1, 1])
    line.prompts.go_on.set()
    assert line.order() == Prepared(slow, [1] * len(HELD_BACK))


def test_a_job_cancelled_while_its_prompt_is_made_never_comes() -> None:
    with open_line(prompt_threads=1) as line:
        slow, slow_frame = submit(HELD_BACK)
        quick, quick_frame = submit("ab")
        line.send(slow_frame)
        assert line.prompts.reached.wait(WAIT_S)
        line.send(CancelRequest(job=slow.id), quick_frame)
        assert line.order() == CancelRequest(job=slow.id)
        line.prompts.go_on.set()
        # made after the slow one by the same thread
        assert line.order() == Prepared(quick, [1, 1])


def test_an_id_that_comes_again_never_gets_the_prompt_of_the_one_before() -> None:
    with open_line(prompt_threads=1) as line:
        first, first_frame = submit(HELD_BACK)
        second = first.model_copy(update={"prompt": "ab"})
        line.send(first_frame)
        assert line.prompts.reached.wait(WAIT_S)
        line.send(CancelRequest(job=first.id), Submit(job=first.id, payload=codec.encode(second)))
        assert line.order() == CancelRequest(job=first.id)
        line.prompts.go_on.set()
        assert line.order() == Prepared(second, [1, 1])


@pytest.mark.parametrize(
    ("prompt", "code", "message"),
    [
        ("refuse", FailureCode.INVALID_JOB, "messages: refused"),
        ("break", FailureCode.ENGINE_ERROR, "the prompt could not be made (KeyError)"),
    ],
)
def test_a_prompt_that_cannot_be_made_is_a_failure(
    line: Line, prompt: str, code: FailureCode, message: str
) -> None:
    job, frame = submit(prompt)
    line.send(frame)
    assert line.order() == Failed(job=job.id, code=code, message=message, retryable=False)


def test_a_job_comes_with_its_shape(line: Line) -> None:
    job, frame = submit("abc", pattern="a+")
    line.send(frame)
    assert line.order() == Prepared(job, [1, 1, 1], shape=SHAPE)


def test_shapes_that_take_long_hold_up_no_job_without_one() -> None:
    with open_line(prompt_threads=1) as line:
        held = [submit("a", pattern="held") for _ in range(SHAPE_THREADS)]
        plain = [submit("ab") for _ in range(3)]
        line.send(*(frame for _, frame in held), *(frame for _, frame in plain))
        assert [line.order() for _ in plain] == [Prepared(job, [1, 1]) for job, _ in plain]
        line.shapes.go_on.set()
        orders = [line.order() for _ in held]
        assert {order.job.id for order in orders if isinstance(order, Prepared)} == {
            job.id for job, _ in held
        }


def test_a_job_cancelled_while_its_shape_is_made_never_comes(line: Line) -> None:
    held, held_frame = submit("a", pattern="held")
    line.send(held_frame, CancelRequest(job=held.id))
    assert line.order() == CancelRequest(job=held.id)
    line.shapes.go_on.set()
    after, after_frame = submit("ab", pattern="b")
    line.send(after_frame)
    assert line.order() == Prepared(after, [1, 1], shape=SHAPE)


@pytest.mark.parametrize(
    ("pattern", "code", "message"),
    [
        ("unsupported", FailureCode.UNSUPPORTED_SCHEMA, "schema: /properties/2/not cannot be enforced"),
        ("complex", FailureCode.GRAMMAR_TOO_COMPLEX, "schema: has 9 values"),
        ("invalid", FailureCode.INVALID_GRAMMAR, "response_format: cannot be read"),
        ("break", FailureCode.ENGINE_ERROR, "the prompt could not be made (KeyError)"),
    ],
)
def test_a_shape_that_cannot_be_made_is_a_failure(
    line: Line, pattern: str, code: FailureCode, message: str
) -> None:
    job, frame = submit("a", pattern=pattern)
    line.send(frame)
    order = line.order()
    assert isinstance(order, Failed)
    assert (order.job, order.code, order.retryable) == (job.id, code, False)
    assert order.message.startswith(message)


def test_a_message_that_is_no_job_is_a_failure(line: Line) -> None:
    line.send(Submit(job="a", payload=b"\xc1"))
    order = line.order()
    assert isinstance(order, Failed)
    assert order.code is FailureCode.INVALID_JOB


def test_the_end_of_the_stream_is_a_shutdown(line: Line) -> None:
    line.worker.shutdown(socket.SHUT_WR)
    assert line.order() == Shutdown()


@pytest.mark.parametrize(
    "data",
    [
        encode(Ready(model="m", slots=1, max_context_tokens=1, kv_tokens=1, load_s=0.0)),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
    ],
    ids=["wrong-way", "too-long", "no-frame"],
)
def test_what_cannot_be_read_is_told(line: Line, data: bytes) -> None:
    line.worker.sendall(data)
    order = line.order()
    assert isinstance(order, Broken)
    assert isinstance(order.error, EngineError | InvalidMessage)

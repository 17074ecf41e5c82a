"""Frames from the worker to orders for the step loop; prompts and shapes are made beside it.

Knows no model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Lock, Thread
from typing import BinaryIO, Protocol

from sparkle.engine.frames import (
    LENGTH_BYTES,
    CancelRequest,
    EndConversation,
    Failed,
    Frame,
    Ping,
    Shutdown,
    Submit,
    body_length,
    decode,
)
from sparkle.errors import ContractError, EngineError, FailureCode, GrammarError
from sparkle.quiet.failures import kind_of, place_of
from sparkle.schemas import codec
from sparkle.schemas.job import Job
from sparkle.text.shape import Shape

log = logging.getLogger(__name__)


class Prompts(Protocol):
    """What makes a job's prompt: `text.prompt.PromptBuilder`, from any thread."""

    def build(self, job: Job) -> list[int]:
        """The prompt's tokens."""
        ...


class AnswerShapes(Protocol):
    """What makes an answer's shape: `text.shape_compiler.ShapeCompiler`, from any thread."""

    def shape_of(self, job: Job) -> Shape | None:
        """What the answer is kept to; None where it may be any text. Raises GrammarError."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job, its prompt's tokens, those of its answer that are known, and the shape that it is kept to."""

    job: Job
    prompt: list[int]
    answered: list[int] = field(default_factory=list[int])
    """What an earlier attempt wrote of the answer."""

    shape: Shape | None = None
    """What the answer is kept to."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The frames cannot be read any more."""

    error: Exception


Order = Prepared | Failed | CancelRequest | EndConversation | Ping | Shutdown | Broken


SHAPE_THREADS = 4
"""Most wait for the process that tries grammars, for seconds where one is hostile."""


class Intake:
    """A thread that reads frames, a few that make prompts and shapes, and the orders that come of them."""

    def __init__(
        self, stream: BinaryIO, prompts: Prompts, shapes: AnswerShapes, *, prompt_threads: int
    ) -> None:
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self._stream = stream
        self._prompts = prompts
        self._shapes = shapes
        self._pool = ThreadPoolExecutor(prompt_threads, thread_name_prefix="prompt")
        self._shape_pool = ThreadPoolExecutor(SHAPE_THREADS, thread_name_prefix="shape")
        self._reader = Thread(target=self._read, name="intake", daemon=True)
        self._lock = Lock()
        # jobs whose prompt is being made, by id: a cancelled one is taken out and never becomes an order,
        # also where the id has come again meanwhile
        self._pending: dict[str, Submit] = {}

    def start(self) -> None:
        """Begin to read."""
        self._reader.start()

    def close(self) -> None:
        """Make no more prompts, and wait for the reader; the stream must be at its end, or near it."""
        for pool in (self._pool, self._shape_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._reader.join()

    def _read(self) -> None:
        try:
            while (frame := _read_frame(self._stream)) is not None:
                self._take(frame)
        # whatever it is, the step loop must hear of it: no frame will ever come again
        except Exception as error:  # noqa: BLE001
            self.orders.put(Broken(error))
        else:
            self.orders.put(Shutdown())

    def _take(self, frame: Frame) -> None:
        match frame:
            case Submit():
                with self._lock:
                    self._pending[frame.job] = frame
                self._pool.submit(self._prepare, frame)
            case CancelRequest():
                with self._lock:
                    self._pending.pop(frame.job, None)
                self.orders.put(frame)
            case EndConversation() | Ping() | Shutdown():
                self.orders.put(frame)
            case _:
                raise EngineError(f"frame of kind {frame.kind} is for the worker, not for the engine")

    def _prepare(self, frame: Submit) -> None:
        order = self._order(frame, lambda: self._prompted(frame))
        if isinstance(order, Prepared) and _asks_for_shape(order.job):
            try:
                self._shape_pool.submit(self._shape, frame, order)
            # closed meanwhile: nobody waits for the order any more
            except RuntimeError:
                return
        else:
            self._put(frame, order)

    def _shape(self, frame: Submit, prepared: Prepared) -> None:
        job = prepared.job
        self._put(frame, self._order(frame, lambda: replace(prepared, shape=self._shapes.shape_of(job))))

    def _put(self, frame: Submit, order: Prepared | Failed) -> None:
        with self._lock:
            if self._pending.get(frame.job) is frame:
                del self._pending[frame.job]
                self.orders.put(order)

    def _prompted(self, frame: Submit) -> Prepared:
        job = codec.decode(frame.payload, Job)
        return Prepared(job, self._prompts.build(job), frame.answered)

    def _order(self, frame: Submit, make: Callable[[], Prepared]) -> Prepared | Failed:
        try:
            return make()
        except ContractError as error:
            code, message = FailureCode.INVALID_JOB, str(error)
        except GrammarError as error:
            code, message = error.code, str(error)
        # one job's prompt must not end the others; what it was is told without its content
        except Exception as error:  # noqa: BLE001
            log.error(
                "prompt_failed", extra={"job": frame.job, "error": kind_of(error), "place": place_of(error)}
            )
            code = FailureCode.ENGINE_ERROR
            message = f"the prompt could not be made ({type(error).__name__})"
        return Failed(job=frame.job, code=code, message=message, retryable=False)


def _asks_for_shape(job: Job) -> bool:
    return job.response_format is not None or job.tools is not None


def _read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame; None at the end of the stream, also where that cuts a frame short."""
    prefix = stream.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return None
    length = body_length(prefix)
    body = stream.read(length)
    return decode(body) if len(body) == length else None

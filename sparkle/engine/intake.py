"""Frames from the worker to orders for the step loop; prompts are made beside it. Knows no model."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from sparkle.errors import ContractError, EngineError, FailureCode
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job, its prompt's tokens, those of its answer that are known, and the shape that it is kept to."""

    job: Job
    prompt: list[int]
    answered: list[int] = field(default_factory=list[int])
    """What an earlier attempt wrote of the answer."""

    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The frames cannot be read any more."""

    error: Exception


Order = Prepared | Failed | CancelRequest | EndConversation | Ping | Shutdown | Broken


class Intake:
    """A thread that reads frames, a few that make prompts, and the orders that come of both."""

    def __init__(self, stream: BinaryIO, prompts: Prompts, *, prompt_threads: int) -> None:
        self.orders: SimpleQueue[Order] = SimpleQueue()
        self._stream = stream
        self._prompts = prompts
        self._pool = ThreadPoolExecutor(prompt_threads, thread_name_prefix="prompt")
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
        self._pool.shutdown(wait=False, cancel_futures=True)
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
        order = self._order(frame)
        with self._lock:
            if self._pending.get(frame.job) is frame:
                del self._pending[frame.job]
                self.orders.put(order)

    def _order(self, frame: Submit) -> Prepared | Failed:
        try:
            job = codec.decode(frame.payload, Job)
            return Prepared(job, self._prompts.build(job), frame.answered)
        except ContractError as error:
            code, message = FailureCode.INVALID_JOB, str(error)
        # one job's prompt must not end the others; what it was is told without its content
        except Exception as error:  # noqa: BLE001
            log.error(
                "prompt_failed", extra={"job": frame.job, "error": kind_of(error), "place": place_of(error)}
            )
            code = FailureCode.ENGINE_ERROR
            message = f"the prompt could not be made ({type(error).__name__})"
        return Failed(job=frame.job, code=code, message=message, retryable=False)


def _read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame; None at the end of the stream, also where that cuts a frame short."""
    prefix = stream.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return None
    length = body_length(prefix)
    body = stream.read(length)
    return decode(body) if len(body) == length else None

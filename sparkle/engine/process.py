"""The engine process, `python -m sparkle.engine.process --fd N --model DIR`: frames in, passes, frames out.

Nothing of a job is ever written to its standard output or error. Knows no queue.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from sparkle.engine.arguments import engine_parser, settings_of
from sparkle.engine.frames import (
    CancelRequest,
    EndConversation,
    Failed,
    Frame,
    Ping,
    Pong,
    Ready,
    Refused,
    Shutdown,
    encode,
)
from sparkle.engine.intake import Broken, Intake, Order, Prepared
from sparkle.engine.settings import UNUSABLE_CODE
from sparkle.errors import CheckpointError, ConfigError
from sparkle.quiet.logs import log_to_stderr
from sparkle.quiet.process import keep_content_in, silence_libraries
from sparkle.text.shape_compiler import ShapeCompiler

if TYPE_CHECKING:
    from sparkle.engine.assemble import Assembly
    from sparkle.engine.engine import Engine

# by its name in full: run as a program, this module is called __main__
log = logging.getLogger("sparkle.engine.process")


def main() -> None:
    """Load the model, say Ready, and serve until told to end.

    A bad model or setting is told to the worker, which tells people, and is exit code 2.
    """
    keep_content_in()
    # Ctrl-C is the worker's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = _arguments()
    with socket.socket(fileno=arguments.fd) as connection:
        try:
            _run(arguments, connection)
        except (CheckpointError, ConfigError) as error:
            with suppress(OSError):
                _send(connection, [Refused(reason=str(error))])
            sys.exit(UNUSABLE_CODE)


def _run(arguments: argparse.Namespace, connection: socket.socket) -> None:
    settings = settings_of(arguments)
    log_to_stderr(settings.log_level.number)
    started_s = time.monotonic()
    # torch takes a good part of the start: its import is timed, and settings are refused before it
    from sparkle.engine.assemble import assemble

    import_s = time.monotonic() - started_s
    assembly = assemble(arguments.model, settings)
    log.info("start_phases", extra={"import_s": round(import_s, 3), **assembly.phases_s})
    ready = _ready(assembly, load_s=time.monotonic() - started_s)
    config = assembly.config
    with (
        connection.makefile("rb") as stream,
        ShapeCompiler(
            arguments.model, assembly.tokenizer, rows=config.vocab_size, end_tokens=config.end_tokens
        ) as shapes,
    ):
        intake = Intake(stream, assembly.prompts, shapes, prompt_threads=settings.prompt_threads)
        _serve_until_told(assembly.engine, intake, connection, ready)


def _serve_until_told(engine: Engine, intake: Intake, connection: socket.socket, ready: Ready) -> None:
    """Say Ready and serve; leaves no thread behind."""
    # from here on the signal ends the process between two passes; while it loads it ends at once
    signal.signal(signal.SIGTERM, lambda _signal, _frame: intake.orders.put(Shutdown()))
    silence_libraries()
    # what is loaded stays: looking all of it through for garbage would keep every answer waiting for 150 ms
    gc.freeze()
    intake.start()
    try:
        _send(connection, [ready])
        serve(engine, intake.orders, lambda frames: _send(connection, frames))
    except (BrokenPipeError, ConnectionResetError):
        log.warning("worker_gone")
    finally:
        # wakes the reader; what was sent before can still be read at the other end
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        intake.close()


def serve(engine: Engine, orders: SimpleQueue[Order], send: Callable[[Sequence[Frame]], None]) -> None:
    """Follow orders and run passes until a Shutdown. Raises what made the frames unreadable."""
    told = engine.cached
    while True:
        frames: list[Frame] = []
        for order in _waiting(orders, engine.idle_s()):
            match order:
                case Shutdown():
                    return
                case Broken():
                    raise order.error
                case CancelRequest():
                    engine.cancel(order.job)
                case EndConversation():
                    engine.end_conversation(order.tenant, order.conversation)
                case Failed():
                    frames.append(order)
                case Ping():
                    frames.append(Pong())
                case Prepared():
                    frames.append(engine.submit(order.job, order.prompt, order.answered, order.shape))
        written = engine.step()
        cached = engine.cached
        if cached != told:
            frames.append(cached)
            told = cached
        frames += written
        if frames:
            send(frames)


def _waiting(orders: SimpleQueue[Order], idle_s: float) -> Iterator[Order]:
    """All orders there are; for the first one it waits up to `idle_s`, which may be for ever."""
    try:
        yield orders.get(timeout=None if math.isinf(idle_s) else idle_s)
        while True:
            yield orders.get_nowait()
    except Empty:
        return


def _send(connection: socket.socket, frames: Sequence[Frame]) -> None:
    connection.sendall(b"".join(encode(frame) for frame in frames))


def _ready(assembly: Assembly, *, load_s: float) -> Ready:
    return Ready(
        model=assembly.model,
        slots=assembly.sizes.slots,
        max_context_tokens=assembly.context_tokens,
        kv_tokens=assembly.plan.kv_tokens,
        load_s=load_s,
        memory=assembly.plan.lines(),
    )


def _arguments() -> argparse.Namespace:
    parser = engine_parser("sparkle.engine.process", __doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the worker")
    return parser.parse_args()


if __name__ == "__main__":
    main()

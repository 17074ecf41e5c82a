"""Starts engine processes with something broken inside, and reads all that they write.

Run as a program (by the tests) it is such a process: `python child.py FAULT --fd N …`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkle.engine import process
from sparkle.engine.frames import LENGTH_BYTES, Failed, Frame, body_length, decode, encode
from sparkle.engine.runner import Runner
from sparkle.engine.settings import default_model
from sparkle.text.answer_text import AnswerText
from sparkle.text.prompt import PromptBuilder


def fail(*arguments: object, **_: object) -> None:
    """An error such as libraries raise: its text shows what it was given, and so would its frame's locals."""
    shown = [vars(argument) if hasattr(argument, "__dict__") else argument for argument in arguments]
    raise KeyError(f"cannot handle {shown}", shown)


FAULTS = {
    "prompt": (PromptBuilder, "build"),
    "answer": (AnswerText, "push"),
    "pass": (Runner, "run"),
}


@dataclass(frozen=True)
class Outcome:
    """What a process did until it ended."""

    frames: list[Frame]
    output: str
    """Standard output and error."""

    code: int


def run_child(fault: str, frames: Sequence[Frame], *, failures: int) -> Outcome:
    """A process with `fault`: sends it `frames`, reads until so many jobs have failed, closes the socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [
                *(sys.executable, __file__, fault, "--fd", str(theirs.fileno())),
                *("--model", str(default_model()), "--threads", "1", "--device", "cpu"),
            ],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    with ours, ours.makefile("rb") as stream, child:
        ours.sendall(b"".join(map(encode, frames)))
        received: list[Frame] = []
        left = failures
        while left and len(prefix := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
            received.append(decode(stream.read(body_length(prefix))))
            left -= isinstance(received[-1], Failed)
        ours.shutdown(socket.SHUT_RDWR)
        output = child.communicate(timeout=60)[0]
        return Outcome(received, output, child.returncode)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    owner, name = FAULTS[sys.argv.pop(1)]
    setattr(owner, name, fail)
    process.main()

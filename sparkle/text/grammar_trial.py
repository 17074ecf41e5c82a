"""Compiles grammars in a process of its own first, which may crash or run away over one. Keeps no grammar."""

from __future__ import annotations

import select
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sparkle.errors import ConfigError, EngineError, GrammarTooComplex, UnsupportedSchema
from sparkle.text.grammar_verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """What one grammar may cost before it is refused."""

    compile_s: float = 5.0
    """Seconds to compile; most schemas take milliseconds, of 1,500 public ones none over 0.15 s."""
    memory_bytes: int = 2 * 1024**3
    """Of address space, beside the vocabulary; the allocator reserves far more of it than it uses."""
    start_s: float = 60.0
    """Seconds until a fresh process must have read its vocabulary; the real one takes 2 s."""

    def __post_init__(self) -> None:
        for name, value in (("compile_s", self.compile_s), ("start_s", self.start_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value} s but must be over 0")
        if self.memory_bytes < 1:
            raise ConfigError(f"memory_bytes is {self.memory_bytes} but must be at least 1")


class GrammarTrial:
    """One warm process, replaced when a grammar has ended it. Any thread may ask; they take turns."""

    def __init__(
        self, model: Path, *, rows: int, end_tokens: Sequence[int], limits: TrialLimits | None = None
    ) -> None:
        """Starts the process and does not wait for it; all but `limits` as for `read_vocabulary`."""
        self._limits = limits or TrialLimits()
        self._command = [
            *(sys.executable, "-m", "sparkle.text.grammar_process", "--model", str(model)),
            *("--rows", str(rows), "--memory-bytes", str(self._limits.memory_bytes)),
            *("--end-tokens", *map(str, end_tokens)),
        ]
        self._turn = threading.Lock()
        self._process = _Process(self._command)

    def require_compiles(self, grammar: str) -> None:
        """Blocks for `compile_s` at most, the turns of others not counted.

        Raises UnsupportedSchema where the compiler refuses the grammar, GrammarTooComplex where it crashes or
        takes too long or too much, EngineError where no process can be had.
        """
        with self._turn:
            self._require_process()
            verdict = self._process.ask(grammar, self._limits.compile_s)
            if verdict is None:
                self._replace()
        if verdict is None or verdict is Verdict.TOO_COMPLEX:
            raise GrammarTooComplex(
                f"schema: does not compile within {self._limits.compile_s:g} s and"
                f" {self._limits.memory_bytes >> 20} MiB; make it simpler"
            )
        if verdict is not Verdict.COMPILES:
            raise UnsupportedSchema(
                "schema: cannot be enforced as a whole, for instance oneOf of what overlaps, patterns"
                " with look-ahead, or what no value fulfils; make it simpler"
            )

    def close(self) -> None:
        """End the process."""
        with self._turn:
            self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_process(self) -> None:
        if self._process.has_ended():
            self._replace()
        if not self._process.wait_ready(self._limits.start_s):
            self._replace()
            raise EngineError(
                f"the grammar compiler did not become ready within {self._limits.start_s:g} s; try again"
            )

    def _replace(self) -> None:
        self._process.end()
        self._process = _Process(self._command)


class _Process:
    """One life of the process: READY, then a verdict for each grammar, until its end."""

    def __init__(self, command: Sequence[str]) -> None:
        # what a crashing compiler prints may quote the grammar: nobody reads it
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._grammars: IO[bytes] = self._popen.stdin
        self._verdicts: IO[bytes] = self._popen.stdout
        self._ready = False

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the process has its vocabulary, within `timeout_s`."""
        self._ready = self._ready or self._next(timeout_s) is Verdict.READY
        return self._ready

    def ask(self, grammar: str, timeout_s: float) -> Verdict | None:
        """The verdict; None where the process ended or did not answer in time."""
        text = grammar.encode()
        try:
            self._write(struct.pack(">I", len(text)) + text)
        except BrokenPipeError:
            return None
        return self._next(timeout_s)

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._grammars.close()
        self._verdicts.close()

    def _write(self, message: bytes) -> None:
        """The process reads all before it compiles, so this cannot block for long."""
        left = memoryview(message)
        while left:
            left = left[self._grammars.write(left) :]

    def _next(self, timeout_s: float) -> Verdict | None:
        readable, _, _ = select.select([self._verdicts], [], [], timeout_s)
        letter = self._verdicts.read(1) if readable else b""
        return Verdict(letter) if letter else None

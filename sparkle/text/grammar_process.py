"""`python -m sparkle.text.grammar_process`: grammars in on standard input, one byte of verdict each out.

It may crash or be ended over any of them: that is what it is for. Knows no tenants and keeps nothing.
"""

from __future__ import annotations

import argparse
import resource
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from llguidance import LLMatcher, LLTokenizer

from sparkle.quiet.process import end_with_parent, keep_content_in
from sparkle.text.grammar import parser_limits, read_vocabulary
from sparkle.text.grammar_verdict import Verdict
from sparkle.text.over_limit import is_over_limit

STACK_BYTES = 2 * 1024 * 1024
"""Of the thread that compiles. What fits here fits into any thread that compiles it again."""

WALK_TOKENS = 4
"""Tokens tried of each grammar: some are over a limit only at the first mask or behind the first token."""


def main() -> None:
    """Read the vocabulary, say READY, then judge grammars until standard input ends."""
    keep_content_in()
    end_with_parent()
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    vocabulary = read_vocabulary(arguments.model, rows=arguments.rows, end_tokens=arguments.end_tokens)
    _limit_memory(arguments.memory_bytes)
    threading.stack_size(STACK_BYTES)
    server = threading.Thread(target=_serve, args=(vocabulary, sys.stdin.buffer, sys.stdout.buffer))
    server.start()
    server.join()


def judge(vocabulary: LLTokenizer, grammar: str) -> Verdict:
    """Compile a grammar and try its first tokens."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    if matcher.is_error():
        return _verdict_of_error(matcher)
    for _ in range(WALK_TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return _verdict_of_error(matcher)
        if matcher.is_accepting():
            break
        if not mask:
            return Verdict.REFUSED
        matcher.consume_token((mask & -mask).bit_length() - 1)
    # whatever is accepted before anything is written lets an answer end at once
    matcher.reset()
    return Verdict.ENDS_AT_ONCE if matcher.is_accepting() else Verdict.COMPILES


def _serve(vocabulary: LLTokenizer, stream: BinaryIO, verdicts: BinaryIO) -> None:
    _say(Verdict.READY, verdicts)
    while head := stream.read(4):
        (length,) = struct.unpack(">I", head)
        grammar = stream.read(length).decode()
        try:
            verdict = judge(vocabulary, grammar)
        except MemoryError:
            verdict = Verdict.TOO_COMPLEX
        _say(verdict, verdicts)


def _say(verdict: Verdict, verdicts: BinaryIO) -> None:
    verdicts.write(verdict.value)
    verdicts.flush()


def _verdict_of_error(matcher: LLMatcher) -> Verdict:
    return Verdict.TOO_COMPLEX if is_over_limit(matcher) else Verdict.REFUSED


def _limit_memory(memory_bytes: int) -> None:
    """Of address space: what is in use now, and `memory_bytes` more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--end-tokens", type=int, nargs="+", required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Keeps what was compiled by tenant and by grammar, bounded in number, bytes and time. Knows no compiler."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparkle.errors import ConfigError, GrammarError

Compiled = TypeVar("Compiled")
Key = tuple[str, bytes]
_LEAST_WAIT_S = 0.01


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Compiled]):
    """What compiling came to, and the bytes of the grammar's text."""

    compiled: Compiled | None
    refusal: GrammarError | None
    text_bytes: int


class GrammarCache(Generic[Compiled]):
    """The grammars used last. A refusal is kept as well: asking again costs nobody a second time.

    A tenant never meets what another one's grammar came to, so the time that an answer takes tells nothing of
    others. Any thread may ask; two that ask for the same at once both compile it.
    """

    def __init__(
        self,
        *,
        grammars: int = 256,
        text_bytes: int = 16 * 1024**2,
        keep_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `grammars` are kept, `text_bytes` of texts together, for `keep_s` after the last use."""
        for name, value in (("grammars", grammars), ("text_bytes", text_bytes)):
            if value < 1:
                raise ConfigError(f"{name} is {value} but must be at least 1")
        if not keep_s > 0:
            raise ConfigError(f"keep_s is {keep_s} but must be above 0")
        self._most_grammars = grammars
        self._most_bytes = text_bytes
        self._kept: OrderedDict[Key, _Kept[Compiled]] = OrderedDict()
        # the one used longest ago is the first, as in what is kept
        self._used_s: OrderedDict[Key, float] = OrderedDict()
        self._keep_s = keep_s
        self._clock = clock
        self._timer: threading.Timer | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, tenant: str, grammar: str, compile_grammar: Callable[[], Compiled]) -> Compiled:
        """What `grammar` compiles to; raises the GrammarError that it is refused with.

        It may be any text that says all that `compile_grammar` compiles. What that raises is kept if it is a
        GrammarError, and raised as it is if not.
        """
        text = grammar.encode()
        key = (tenant, hashlib.sha256(text).digest())
        with self._lock:
            self._forget_old()
            kept = self._kept.get(key)
            if kept is not None:
                self._use(key)
        if kept is None:
            kept = self._compiled(compile_grammar, len(text))
            with self._lock:
                self._keep(key, kept)
        if kept.refusal is not None:
            # a fresh one: an error that is raised twice drags its first traceback along
            raise type(kept.refusal)(*kept.refusal.args)
        assert kept.compiled is not None
        return kept.compiled

    def __len__(self) -> int:
        """Grammars kept."""
        with self._lock:
            return len(self._kept)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            while self._kept:
                self._drop_first()

    def _compiled(self, compile_grammar: Callable[[], Compiled], text_bytes: int) -> _Kept[Compiled]:
        try:
            return _Kept(compile_grammar(), None, text_bytes)
        except GrammarError as refusal:
            return _Kept(None, refusal.with_traceback(None), text_bytes)

    def _keep(self, key: Key, kept: _Kept[Compiled]) -> None:
        replaced = self._kept.pop(key, None)
        self._bytes += kept.text_bytes - (replaced.text_bytes if replaced else 0)
        self._kept[key] = kept
        self._use(key)
        while len(self._kept) > self._most_grammars or self._bytes > self._most_bytes:
            self._drop_first()
        self._watch()

    def _use(self, key: Key) -> None:
        self._used_s[key] = self._clock()
        self._kept.move_to_end(key)
        self._used_s.move_to_end(key)

    def _drop_first(self) -> None:
        key, dropped = self._kept.popitem(last=False)
        del self._used_s[key]
        self._bytes -= dropped.text_bytes

    def _forget_old(self) -> None:
        oldest_s = self._clock() - self._keep_s
        while self._used_s and next(iter(self._used_s.values())) <= oldest_s:
            self._drop_first()

    def _watch(self) -> None:
        """Look again when the first one's time is over, also if nobody asks for anything by then."""
        if self._timer is None and self._used_s:
            left_s = next(iter(self._used_s.values())) + self._keep_s - self._clock()
            self._timer = threading.Timer(max(left_s, _LEAST_WAIT_S), self._look)
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
            self._forget_old()
            self._watch()

"""Where compiled kernels are kept, and how many were compiled. Knows no kernel."""

from __future__ import annotations

from pathlib import Path

from sparkle.kernels.jit import knobs


def keep_compiled_kernels(directory: Path) -> None:
    """From now on this process looks for compiled kernels in `directory` first, and puts new ones there."""
    if knobs is not None:
        knobs.cache.dir = str(directory)


class CompileCount:
    """Counts the kernels that this process needs from now on; one at a time."""

    def __init__(self) -> None:
        self.compiled = 0
        """Kernels that had to be compiled."""
        self.found = 0
        """Kernels that had been compiled before."""
        if knobs is not None:
            knobs.compilation.listener = self._listen

    @property
    def needed(self) -> int:
        """All of them."""
        return self.compiled + self.found

    def _listen(self, *, cache_hit: bool, **_: object) -> None:
        if cache_hit:
            self.found += 1
        else:
            self.compiled += 1

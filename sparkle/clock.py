"""Unix time that goes on evenly, whatever is done to the machine's clock meanwhile. Knows no deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def since_boot_s() -> float:
    """Seconds of a clock that nobody sets; it goes on while the machine sleeps, where the system has such."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SteadyUnixClock:
    """Unix time in seconds: the machine's when this was made, and from then on what a steady clock adds.

    A deadline that is judged by the machine's clock itself passes, or never does, once somebody sets it.
    One that was wrong from the start stays so: what judges by this is started again after it was set right.
    """

    def __init__(
        self, unix_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = since_boot_s
    ) -> None:
        """`unix_s` is read once."""
        self._steady_s = steady_s
        self._zero_s = unix_s() - steady_s()

    def __call__(self) -> float:
        """Now."""
        return self._zero_s + self._steady_s()

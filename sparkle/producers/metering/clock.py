"""The two clocks that metering reads, as one value that a test can set. Knows no account."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What time it is, and how much of it passes."""

    unix_s: Callable[[], float] = time.time
    """Seconds of Unix time: months, keys' ends, leases as others see them."""

    steady_s: Callable[[], float] = time.monotonic
    """Seconds since whenever, which nobody sets back: what passes between two events of this process."""

    def unix_ms(self) -> int:
        """Milliseconds of Unix time."""
        return int(self.unix_s() * 1000)

"""Time comes in by the door (STYLE rule 2): whoever needs a clock is given one."""

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells monotonic time."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...


class MonotonicClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Seconds of `time.perf_counter`."""
        return time.perf_counter()


class VirtualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Seconds since the start of the simulation."""
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Move the clock forward by `duration_s` seconds (>= 0)."""
        if duration_s < 0:
            raise ValueError(f"a clock cannot go back: duration_s={duration_s}")
        self._now_s += duration_s

"""Time comes in by the door (docs/style 2): code that needs a clock is given one."""

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
        self.now_s = start_s

    def now(self) -> float:
        """Return the seconds since the start of the simulation."""
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Move the clock forward by `duration_s` seconds (>= 0)."""
        if duration_s < 0:
            raise ValueError(f"a clock cannot go back: duration_s={duration_s}")
        self.now_s += duration_s


class Stopwatch:
    """Tells the seconds since it was made, or since it is said to have been started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self, elapsed_s: float = 0.0) -> None:
        """Go on from this many seconds."""
        self._started_s = self._clock.now() - elapsed_s

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return self._clock.now() - self._started_s

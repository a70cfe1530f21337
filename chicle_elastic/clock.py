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

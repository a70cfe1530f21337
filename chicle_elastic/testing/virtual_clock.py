"""Time for tests and simulations."""


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

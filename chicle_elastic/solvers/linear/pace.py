"""How fast coordinate descent gets on, and whether Newton steps of the only task (`wide.finish`) would be cheaper.

Coordinate descent needs few passes while the duals are far from their bounds and very many when margins of many samples
are close to 1 at once. The decision follows from counts of values and never from times, so that the same seed gives the
same model.
"""

import math
import statistics

FEWEST_PASSES, MOST_PASSES = 2, 5
"""Passes over which the pace is measured: the last half of all, within these bounds. Single passes say little, and old
ones little of the present pace."""
NEWTON_STEPS = 12
"""Newton steps that a finish takes, typically."""
SLACKENING = 2.0
"""Passes that are needed, as a multiple of those at the present pace: it falls until few duals are left that move."""
ROW_VALUES = 32
"""What a visit costs besides the values of the row, as a number of values: the step waits for the margin."""
LOOK_VALUES = 8
"""What it costs not to visit a row."""
BLAS_ADVANTAGE = 8
"""Multiplications of a matrix product in the time of one value of a pass, which waits for the value before it."""
CALL_VALUES = 1 << 17
"""What it costs to begin a pass or a step at all, as a number of values."""


class Pace:
    """How fast coordinate descent gets on, and whether a Newton finish would be cheaper."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._visits: list[int] = []

    def add(self, relative_gap: float, visited: int) -> None:
        """Learn the relative gap that a pass estimated, and how many rows it visited (over all outputs)."""
        self._gaps.append(relative_gap)
        self._visits.append(visited)

    @property
    def _window(self) -> int:
        return min(max(FEWEST_PASSES, len(self._gaps) // 2), MOST_PASSES)

    def visited(self) -> float:
        """Rows that a pass visits at present: all of them in the rare pass after a certificate only."""
        return statistics.median(self._visits[-self._window :])

    def passes_to(self, tol: float) -> float:
        """Passes still needed at the present pace; 0 while there were too few to tell, infinity without progress."""
        window = self._window
        if len(self._gaps) <= window or self._gaps[-1] <= tol:
            return 0.0
        before, now = self._gaps[-1 - window], self._gaps[-1]
        return window * math.log(now / max(tol, 1e-16)) / math.log(before / now) if now < before else math.inf

    def is_slow(self, tol: float, *, num_duals: int, row_values: float, step_values: int) -> bool:
        """Say whether the passes to come cost more than `NEWTON_STEPS` Newton steps.

        Args:
            tol: Relative gap to reach.
            num_duals: Duals of all outputs.
            row_values: Feature values of a row.
            step_values: What a Newton step costs besides reading the rows, as a number of values.
        """
        passes = SLACKENING * self.passes_to(tol)
        a_pass = self.visited() * (row_values + ROW_VALUES) + LOOK_VALUES * num_duals + CALL_VALUES
        a_step = 1.5 * num_duals * row_values + step_values + CALL_VALUES
        return passes * a_pass > NEWTON_STEPS * a_step

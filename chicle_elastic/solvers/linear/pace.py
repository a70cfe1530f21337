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
"""Newton steps over all rows that a finish takes, typically."""
SLACKENING = 2.0
"""Passes that are needed, as a multiple of those at the present pace: it falls until few duals are left that move."""
SLACK = 0.6
"""Share of the gap that a pass leaves, from which on gaps may fall as a power of the number of passes."""
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

    def passes_by_power(self, tol: float) -> float:
        """The same where gaps fall as a power of the number of passes, as they do where some columns are heavy.

        It counts only once a pass leaves so much of the gap that this may be so (`SLACK`).
        """
        window = self._window
        if self.passes_to(tol) in (0.0, math.inf) or self._gaps[-1] < SLACK * self._gaps[-2]:
            return self.passes_to(tol)
        count = len(self._gaps)
        power = math.log(self._gaps[-1 - window] / self._gaps[-1]) / math.log(count / (count - window))
        exponent = math.log(self._gaps[-1] / max(tol, 1e-16)) / power
        return count * math.expm1(min(exponent, 100.0))

    def _in_passes_of_now(self, passes: float) -> float:
        """What so many passes cost, as a number of passes like the last ones: screening leaves more and more rows out.

        By the last two passes, or by medians of three, because the pass after a certificate visits all rows.
        """
        if len(self._visits) < 4:
            return passes
        before, now = statistics.median(self._visits[-6:-3]), statistics.median(self._visits[-3:])
        share = min((now / max(before, 1)) ** (1 / 3), self._visits[-1] / max(self._visits[-2], 1))
        return passes if share >= 1.0 else (1.0 - share**passes) / (1.0 - share)

    def is_slow(
        self,
        tol: float,
        *,
        num_duals: int,
        row_values: float,
        hessian_values: int,
        num_steps: int = NEWTON_STEPS,
        is_wide: bool = False,
    ) -> bool:
        """Whether the passes to come cost more than `num_steps` Newton steps.

        Args:
            tol: Relative gap to reach.
            num_duals: Duals of all outputs.
            row_values: Feature values of a row.
            hessian_values: What solving with the second derivatives costs in a Newton step, as a number of values.
            num_steps: That a finish takes, typically.
            is_wide: Whether gaps may fall as a power of the number of passes, and passes come to visit ever fewer rows.
        """
        passes = SLACKENING * self.passes_to(tol)
        if is_wide:
            passes = self._in_passes_of_now(max(passes, self.passes_by_power(tol)))
        a_pass = self.visited() * (row_values + ROW_VALUES) + LOOK_VALUES * num_duals + CALL_VALUES
        a_step = 1.5 * num_duals * row_values + hessian_values + CALL_VALUES
        return passes * a_pass > num_steps * a_step

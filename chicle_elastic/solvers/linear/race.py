"""Coordinate descent against Newton steps, for the only task: both run, in turns, and the work of both is counted.

How fast a method gets on at first says little of its end. On flights one-hot the relative gap of coordinate descent is
0.90, 0.83, 0.71, 0.33, 0.06 and 0.003 after 1, 2, 4, 8, 16 and 32 passes, and a rule that looks at the first of these
gives it up for Newton steps that take thirty times as long. So neither is given up: what is done in vain is bounded.

Work is counted and never timed, so that the same seed gives the same model on every machine.
"""

import math

ROW_VALUES = 32
"""What a visit of a pass costs besides the values of the row: the step waits for the margin."""
CACHED_ROW_VALUES = 12
"""The same where all rows are in the cache, and what it costs not to visit a row."""
PASS_VALUES = 1 << 16
"""What it costs to begin a pass, and to take a Newton step of an output, at all."""
ITERATION_VALUES = 1 << 18
"""What the runtime does between two iterations of an only task: 0.2 to 0.3 ms, where a value takes a nanosecond."""
DENSE_VALUE = 0.25
"""A value of dense rows in a product with a vector, and in a pass; one of sparse rows is the unit."""
MULTIPLICATION = 0.125
"""A multiplication and addition in a product of matrices."""
AHEAD = 2.0
"""How many times as much work as the other a method may have done (besides the first turn)."""
IN_SIGHT = 0.25
"""Share of the first turn in which a slower method has to come to its end, as it seems, to keep its turn: the other
one rarely needs a whole first turn."""
LEAST_TRY = 1.0 / 32.0
"""Share of the first turn that a method does before it may lose its turn: the first steps say little."""


class Race:
    """Turns of two methods, 0 and 1, to the first that ends.

    The one that got on faster in its last turn runs until it has done `AHEAD` times as much work as the other, and
    `first_turn` on top; then the other catches up. So whichever ends first, and however fast each seemed to be, the
    work of both is at most (1 + `AHEAD`) times that of the one that ended, plus `first_turn` and one step. A turn ends
    before its time where the method has done twice as much as before it, to look at both again, and where it is slower
    than the other was and its end not in sight.
    """

    def __init__(self, first_turn: float, first: int = 0, first_share: float = 1.0) -> None:
        """Begin with `first`, which yields after a share of `first_turn`, the work before the other one does any."""
        self.running = self._faster = first  # whose turn it is, and which got on faster
        self._first_turn, self._work = first_turn, [0.0, 0.0]
        self._rates = [math.inf, math.inf]  # of one that has not run yet nothing is known
        self._turn: list[tuple[float, float]] = []
        self._end = first_share * first_turn

    def begin(self, left: float) -> None:
        """Learn what is left to do at the beginning of a turn; without, it is what the first step leaves."""
        self._turn = [(self._work[self.running], left)]

    def add(self, work: float, left: float) -> None:
        """Learn the work of a step of the running method, or a few, and what is left to do; the turn may end.

        `left` is in any unit of which a steady method does as much with each unit of work: the logarithm of the gap
        over the tolerance, say.
        """
        own, other = self.running, 1 - self.running
        self._work[own] += work
        self._turn.append((self._work[own], left))
        half = (len(self._turn) - 1) // 2  # methods slow down towards the end
        has_tried = half > 0 and self._work[own] - self._turn[0][0] >= LEAST_TRY * self._first_turn
        may_yield = has_tried and not self._is_too_far_ahead(other)
        pace = self._rate_since(half)
        is_slow = pace < self._rates[other] and left > pace * IN_SIGHT * self._first_turn
        if self.is_over() or (may_yield and is_slow):
            self._rates[own] = self._rate_since(0)
            self._faster = 0 if self._rates[0] >= self._rates[1] else 1
            is_others = self._faster == other and not self._is_too_far_ahead(other)
            self.running = other if is_others or self._is_too_far_ahead(own) else own
            self._end = self._work[self.running] + max(self._first_turn, self._work[self.running])
            self._turn = []

    def _rate_since(self, step: int) -> float:
        """Return what was done since this step of the turn, per unit of work."""
        (work, left), (work_now, left_now) = self._turn[step], self._turn[-1]
        return (left - left_now) / max(work_now - work, 1.0)

    def is_over(self, work: float = 0.0) -> bool:
        """Say whether the turn is over once the running method has done so much more."""
        if self._work[self.running] + work > self._end:
            return True
        if self.running == self._faster:
            return self._is_too_far_ahead(self.running, work)
        faster = self._faster  # may do a good piece now
        return self._work[faster] + 0.5 * self._first_turn <= AHEAD * (self._work[1 - faster] + work) + self._first_turn

    def _is_too_far_ahead(self, own: int, work: float = 0.0) -> bool:
        return self._work[own] + work > AHEAD * self._work[1 - own] + self._first_turn

"""Which iterations the task is told to begin, and which ones it begins by itself. Pure.

A task that was told `Iterate(may_go_on=True)` is *free*: it begins the next iteration without a word, until it says
that it waits for orders (`IterationEnded` without `goes_on`, `IterationBroke`). What the log starts meanwhile is not
said. It is kept: the log may be ahead of what the task has told, by what other agents have sent, and so start an
iteration behind a boundary at which the task will wait.
"""

from chicle_elastic.runtime.control import Iterate


class Pace:
    """Of one task and its agent."""

    def __init__(self) -> None:
        self._free: tuple[int, int] | None = None
        self._unsaid: Iterate | None = None

    def start(self, order: Iterate) -> Iterate | None:
        """The log starts an iteration; returns the order that is to be said, or None for a free task."""
        if self._free is not None and self._free[0] == order.round:
            self._unsaid = order
            return None
        self._unsaid = None
        self._free = (order.round, order.iteration) if order.may_go_on else None
        return order

    def waits(self, round: int, iteration: int) -> None:
        """The task has ended this iteration, or given it up, and waits for orders. To be said before the log knows."""
        if self._free is not None and self._free[0] == round and self._free[1] <= iteration:
            self._free = None

    def overdue(self, iteration: int, in_flight: tuple[int, int] | None) -> Iterate | None:
        """An order that was not said, and has to be.

        Args:
            iteration: The task has ended this one.
            in_flight: Round and iteration that run, by the log, which knows of it.
        """
        order = self._unsaid
        if order is None or self._free is not None or order.iteration <= iteration:
            return None
        self._unsaid = None
        return self.start(order) if in_flight == (order.round, order.iteration) else None

    def forget(self) -> None:
        """There is another task, or another life of this node."""
        self._free = self._unsaid = None

"""Which iterations the agent orders its task to begin, and which ones the task begins by itself. Pure.

A task that was sent `Iterate(may_go_on=True)` is *free*: it begins the next iteration without an order, until it
reports that it waits for orders (`IterationEnded` without `goes_on`, `IterationBroke`). The agent does not send the
iterations that the log starts meanwhile. It keeps the last one: the log may be ahead of the task's reports, through
entries of other agents, and so start an iteration behind a boundary at which the task will wait.
"""

from chicle_elastic.runtime.control.messages import Iterate


class Pipelining:
    """The orders of one agent to its task."""

    def __init__(self) -> None:
        self._free: tuple[int, int] | None = None
        self._unsent: Iterate | None = None

    def start(self, order: Iterate) -> Iterate | None:
        """The log starts an iteration; returns the order to send to the task, or None if the task is free."""
        if self._free is not None and self._free[0] == order.round:
            self._unsent = order
            return None
        self._unsent = None
        self._free = (order.round, order.iteration) if order.may_go_on else None
        return order

    def waits(self, round: int, iteration: int) -> None:
        """The task has ended or aborted this iteration and waits for orders. Called before the log knows."""
        if self._free is not None and self._free[0] == round and self._free[1] <= iteration:
            self._free = None

    def overdue(self, iteration: int, in_flight: tuple[int, int] | None) -> Iterate | None:
        """The order that was not sent and is needed now; None if there is none.

        Args:
            in_flight: Round and iteration that run by the log, which has folded that end.
        """
        order = self._unsent
        if order is None or self._free is not None or order.iteration <= iteration:
            return None
        self._unsent = None
        return self.start(order) if in_flight == (order.round, order.iteration) else None

    def forget(self) -> None:
        """There is another task, or another incarnation of this node."""
        self._free = self._unsent = None

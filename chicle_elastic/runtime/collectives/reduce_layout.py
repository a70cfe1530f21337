"""The buffer that the tasks of a round all-reduce: one float64 vector with named parts."""

import numpy as np

from chicle_elastic.chunks.views import Array


class ReduceBuffer:
    """A vector in named parts. Parts are views: what is written into them is in `buffer`."""

    def __init__(self, **sizes: int) -> None:
        self.buffer: Array = np.zeros(sum(sizes.values()))  # the whole, ndarray of shape (sum of the lengths,), float64
        self._parts: dict[str, Array] = {}
        self._stops: dict[str, int] = {}
        start = 0
        for name, size in sizes.items():
            self._parts[name] = self.buffer[start : start + size]
            start += size
            self._stops[name] = start

    def __getitem__(self, name: str) -> Array:
        return self._parts[name]

    def behind(self, name: str) -> Array:
        """Everything behind this part; a view."""
        return self.buffer[self._stops[name] :]

    def clear(self) -> None:
        """Set all values to zero, the contribution of a task without chunks."""
        self.buffer[:] = 0.0


def iteration_buffer(num_parameters: int, num_metrics: int, num_members: int) -> ReduceBuffer:
    """The sum of an iteration. Parts: `update` (weight * delta), `weight`, `metrics`; `samples` processed, `seconds`,
    `chunks` and their `rows` of each member, by rank; `votes` for a stop at this boundary; `elapsed` seconds since the
    start of the job when each member had its part, by rank."""
    return ReduceBuffer(
        update=num_parameters,
        weight=1,
        metrics=num_metrics,
        samples=num_members,
        seconds=num_members,
        chunks=num_members,
        rows=num_members,
        votes=1,
        elapsed=num_members,
    )


def evaluation_buffer(num_parameters: int, num_metrics: int, num_members: int) -> ReduceBuffer:
    """The sum of an evaluation. Parts: `contribution` to a rebuilt model, `metrics`, the `rows` that they stand for,
    and `elapsed` as above."""
    return ReduceBuffer(contribution=num_parameters, metrics=num_metrics, rows=1, elapsed=num_members)

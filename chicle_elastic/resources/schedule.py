"""A resource manager that gives what a schedule says: so many nodes from then on, at such a price.

The schedule serves experiments, where nodes come and go at known times, and a cluster of fixed size, which is a
schedule with one step.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, Revoked, Said
from chicle_elastic.values import ResourceOffer

MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """From a time on."""

    start_s: float  # seconds since the job began
    nodes: int  # nodes that there are for the job, >= 0
    price: float | None = None  # what a second of a node costs; None where that is not known


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """How many nodes there are for a job, over time.

    Args:
        steps: (seconds, nodes) or (seconds, nodes, price), the first one at 0 seconds, in the order of time. Each is
            kept as a `ScheduleStep`.

    Raises:
        UsageError: Steps that cannot be.

    >>> from chicle_elastic import Schedule
    >>> schedule = Schedule(((0, 2), (60, 4, 0.3)))
    >>> schedule.at(59.9).nodes, schedule.at(60).nodes
    (2, 4)
    """

    steps: tuple[ScheduleStep, ...]

    def __init__(self, steps: Iterable[ScheduleStep | tuple[float, int] | tuple[float, int, float | None]]) -> None:
        kept: list[ScheduleStep] = []
        for number, given in enumerate(steps, 1):
            values = (given.start_s, given.nodes, given.price) if isinstance(given, ScheduleStep) else given
            step = _step(values, f"Schedule: step {number}")
            _require_after(step, kept, f"Schedule: step {number}")
            kept.append(step)
        if not kept:
            raise UsageError("Schedule: there are no steps; say ((0, 4),) for four nodes all the time")
        object.__setattr__(self, "steps", tuple(kept))

    @classmethod
    def read(cls, path: str | Path) -> "Schedule":
        """Read a text file: a step in each line, `seconds nodes [price]`; empty lines and `# ...` are comments.

        Args:
            path: The file. Blanks or commas stand between the figures.

        Raises:
            UsageError: There is no such file, or a line that cannot be, with its number.
        """
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: the schedule cannot be read: {error}") from error
        if len(text) > MAX_FILE_BYTES:
            raise UsageError(f"{path}: a schedule has at most {MAX_FILE_BYTES >> 20} MiB")
        steps: list[ScheduleStep] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = re.split(r"[\s,]+", line.partition("#")[0].strip())
            if words == [""]:
                continue
            where = f"{path}:{number}"
            try:
                values: list[float | int] = [float(words[0]), int(words[1]), *map(float, words[2:])]
            except (ValueError, IndexError):
                raise UsageError(
                    f"{where}: {line.strip()!r} is not `seconds nodes [price]`, as in `60 4 0.3`"
                ) from None
            step = _step(values, where)
            _require_after(step, steps, where)
            steps.append(step)
        if not steps:
            raise UsageError(f"{path}: the schedule has no line `seconds nodes [price]`")
        return cls(tuple(steps))

    def at(self, now_s: float) -> ScheduleStep:
        """The step that holds so many seconds after the beginning of the job."""
        return next((step for step in reversed(self.steps) if step.start_s <= now_s), self.steps[0])

    def most(self) -> int:
        """Largest number of nodes."""
        return max(step.nodes for step in self.steps)

    def least(self) -> int:
        """Smallest number of nodes."""
        return min(step.nodes for step in self.steps)


class ScheduledNodes:
    """The resource manager of a schedule. Without a request the job gets all nodes that there are.

    A job that releases a node without having requested a number wants no other one in its place.

    Args:
        target: Nodes that the job is to have at first; None for all.
    """

    def __init__(self, schedule: Schedule, *, prefix: str, target: int | None = None) -> None:
        self.nodes: list[NodeId] = []  # names of those that the job has, in the order in which they were assigned
        self.target = target  # nodes that the job is to have; None for all
        self.schedule = schedule  # as given
        self._prefix = prefix
        self._num_assigned = 0
        self._is_requested = False
        self._most: int | None = None

    def request(self, total: int, reason: str) -> None:
        """Have so many nodes as soon as there are as many."""
        self.target = total
        self._is_requested = True

    def release(self, node: NodeId) -> None:
        """The node is free again."""
        if node in self.nodes:
            self.nodes.remove(node)
            if not self._is_requested:
                self.target = len(self.nodes)

    def lost(self, node: NodeId) -> None:
        """The node has failed: another one takes its place."""
        if node in self.nodes:
            self.nodes.remove(node)

    def resize(self, total: int) -> None:
        """An operator wants the job to have so many nodes: if it has more, the newest are revoked."""
        self.target = self._most = total

    def poll(self, now_s: float) -> Sequence[Said]:
        """Revoke the newest nodes that there are not any more, and assign those that there are."""
        step = self.schedule.at(now_s)
        most = step.nodes if self._most is None else min(step.nodes, self._most)
        self._most = None
        said: list[Said] = [Revoked(node) for node in self.nodes[most:]]
        del self.nodes[most:]
        target = step.nodes if self.target is None else min(step.nodes, self.target)
        while len(self.nodes) < target:
            self.nodes.append(NodeId(f"{self._prefix}{self._num_assigned}"))
            self._num_assigned += 1
            said.append(Assigned(self.nodes[-1]))
        said.append(ResourceOffer(available=step.nodes - len(self.nodes), price=step.price))
        return said


def _step(values: Sequence[float | int | None], where: str) -> ScheduleStep:
    """A step of (seconds, nodes[, price]). Raises UsageError when it cannot be."""
    try:
        start_s, nodes, price = (*values, None) if len(values) == 2 else values
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {values!r} is not (seconds, nodes) or (seconds, nodes, price)") from None
    if not isinstance(start_s, int | float) or not 0 <= start_s < math.inf:
        raise UsageError(f"{where}: it begins after {start_s!r} seconds; that must be finite and >= 0")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 0:
        raise UsageError(f"{where}: there are {nodes!r} nodes; that must be an integer >= 0")
    if price is not None and (not isinstance(price, int | float) or not 0 <= price < math.inf):
        raise UsageError(f"{where}: the price is {price!r}; it must be finite and >= 0")
    return ScheduleStep(float(start_s), nodes, None if price is None else float(price))


def _require_after(step: ScheduleStep, steps: Sequence[ScheduleStep], where: str) -> None:
    """Raise a UsageError unless the step can follow the others."""
    if not steps and step.start_s != 0:
        raise UsageError(f"{where}: the first step begins at 0 seconds, and not at {step.start_s:g}")
    if steps and step.start_s <= steps[-1].start_s:
        raise UsageError(f"{where}: {step.start_s:g} s is not after the step before, at {steps[-1].start_s:g} s")

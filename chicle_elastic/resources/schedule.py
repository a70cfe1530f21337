"""A resource manager that gives what a schedule says: so many nodes from then on, at such a price.

The schedule serves experiments, where nodes come and go at known times, and a cluster of fixed size, which is a
schedule with one step.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, Revoked, Said
from chicle_elastic.values import ResourceOffer

MAX_FILE_BYTES = 64 << 20
MAX_NODES = 100_000


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
        given = (dataclasses.astuple(step) if isinstance(step, ScheduleStep) else step for step in steps)
        self._keep((f"Schedule: step {number}", values) for number, values in enumerate(given, 1))

    @classmethod
    def read(cls, path: str | Path) -> "Schedule":
        """Read a text file: a step in each line, `seconds nodes [price]`; empty lines and `# ...` are comments.

        Args:
            path: The file. Blanks or commas stand between the figures.

        Raises:
            UsageError: There is no such file, or a line that cannot be, with its number.
        """
        schedule = cls.__new__(cls)
        schedule._keep(figures_of(numbered_lines(path, "schedule")))
        return schedule

    def _keep(self, steps: Iterable[tuple[str, Sequence[Any]]]) -> None:
        kept: list[ScheduleStep] = []
        for where, values in steps:
            flaw = flaw_of_step(values, dataclasses.astuple(kept[-1]) if kept else None)
            if not kept and flaw is None and values[0] != 0:
                flaw = "the first step begins at 0 seconds"
            if flaw is not None:
                raise UsageError(f"{where}: {values!r}: {flaw}")
            start_s, nodes, price = (*values, None)[:3]
            kept.append(ScheduleStep(float(start_s), int(nodes), None if price is None else float(price)))
        if not kept:
            raise UsageError("Schedule: there are no steps; say ((0, 4),) for four nodes all the time")
        object.__setattr__(self, "steps", tuple(kept))

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


def read_text(path: Path, what: str) -> str:
    """Read a text file. Raises UsageError when there is none, or it is too large, or no text."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the {what} cannot be read: {error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: a {what} has at most {MAX_FILE_BYTES >> 20} MiB")
    return text


def numbered_lines(path: str | Path, what: str) -> list[tuple[str, str]]:
    """Read "file:number" and text of each line that is not empty or `# ...`. Raises UsageError when there is none."""
    lines = [
        (f"{path}:{number}", line.strip())
        for number, line in enumerate(read_text(Path(path), what).splitlines(), start=1)
        if line.partition("#")[0].strip()
    ]
    if not lines:
        raise UsageError(f"{path}: the {what} has no line; one is `seconds nodes [price]`, for example")
    return lines


def figures_of(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[float]]]:
    """Read lines `seconds nodes [price]`, with blanks or commas between. Raises UsageError when one is none."""
    for where, line in lines:
        try:
            yield where, [float(word) for word in re.split(r"[\s,]+", line.partition("#")[0].strip())]
        except ValueError:
            raise UsageError(f"{where}: {line!r} is not `seconds nodes [price]`, as in `60 4 0.3`") from None


def flaw_of_step(step: Sequence[Any], before: Sequence[Any] | None) -> str | None:
    """Say what is wrong with (seconds, nodes[, price]) behind another step; None if nothing is."""
    if not isinstance(step, list | tuple) or len(step) not in (2, 3):
        return "a step is `seconds, nodes` or `seconds, nodes, price`"
    if any(not _is_figure(value) for value in (step[:2] if step[-1] is None else step)):
        return "seconds, nodes and price must be >= 0 and finite"
    if step[1] != int(step[1]) or step[1] > MAX_NODES:
        return f"nodes must be an integer <= {MAX_NODES}"
    if before is not None and step[0] <= before[0]:
        return f"it must come after second {before[0]:g}; steps are in the order of time"
    return None


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf

"""What a job has done so far, read from the event files that its agents write to the folder `nodes`.

Every agent writes every iteration that its task was in, so each is told once, whichever agent wrote it first. Files
grow while they are read, and members come and go: `read` goes on where it was.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.net.event_file import SUFFIX, EventTail
from chicle_elastic.monitoring.records import IterationRecord, Transition, record_of, transition_of

NODES = "nodes"
GAP_S = 3.0  # an iteration that is missing is waited for so long: its agent writes a moment later, or was killed before
KINDS = ("iteration", "transition", "whole")


class JobProgress:
    """Follows the event files of a job.

    Args:
        on_iteration: Called with each iteration, once, in order; iterations that no agent could write are left out.
        on_transition: Called with each change of the membership as an agent saw it, at most once for each round, and
            again for a loss when all samples are back.
    """

    def __init__(
        self,
        job: Path,
        *,
        on_iteration: Callable[[IterationRecord], object] | None = None,
        on_transition: Callable[[Transition], object] | None = None,
    ) -> None:
        self.last: IterationRecord | None = None  # the last iteration; None before the first one
        self._folder = job / NODES
        self._on_iteration, self._on_transition = on_iteration, on_transition
        self._tails: dict[str, EventTail] = {}
        self._early: dict[int, IterationRecord] = {}
        self._early_s = 0.0
        self._began_s: float | None = None
        self._told: set[tuple[int, bool]] = set()

    def read(self, *, is_over: bool = False) -> None:
        """Read what is new, and call for it. Raises OSError when the folder cannot be read."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            node = path.name.removesuffix(SUFFIX)
            for event in self._tails.setdefault(node, EventTail(self._folder, node)).read():
                if event["kind"] in KINDS:
                    self._hear(event)
        self._tell_early(is_over=is_over)

    def _hear(self, event: Mapping[str, Any]) -> None:
        if self._began_s is None:
            self._began_s = event["time"] - 1e-3 * event.get("duration_ms", 0.0)
        if event["kind"] == "iteration":
            self._keep(record_of(event, began_s=self._began_s))
        elif self._on_transition is not None:
            transition = transition_of(event)
            news = transition.round, transition.whole_ms is not None
            if news not in self._told:
                self._told.add(news)
                self._on_transition(transition)

    def _keep(self, record: IterationRecord) -> None:
        if self.last is not None and record.iteration <= self.last.iteration:
            return
        if not self._early:
            self._early_s = time.monotonic()
        self._early.setdefault(record.iteration, record)

    def _tell_early(self, *, is_over: bool) -> None:
        is_late = is_over or self._on_iteration is None or time.monotonic() - self._early_s > GAP_S
        while self._early:
            number = min(self._early)
            if not is_late and number != (1 if self.last is None else self.last.iteration + 1):
                break
            self.last = self._early.pop(number)
            if self._on_iteration is not None:
                self._on_iteration(self.last)
        self._early_s = time.monotonic() if not self._early else self._early_s

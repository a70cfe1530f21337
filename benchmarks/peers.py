"""Other libraries, and the least that each of them has to be charged for.

A peer does not know how good its model is, and stops by measures of its own. So it is charged only for the fewest
iterations that bring its objective close enough to the best possible one: what an oracle would have told it. They are
found beforehand (doubling, then halving the interval) and remembered beside the data; every
time that is shown comes from the run itself.
"""

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.datasets import DataSet, replace_text
from benchmarks.fits import coef_of, timed_fit
from benchmarks.problems import Problem, primal
from benchmarks.references import Reference

MAX_ITERATIONS = 1 << 16


def suits_any(problem: Problem) -> bool:
    """Whether a peer can do a problem, for those who can do all of them."""
    return True


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library.

    Attributes:
        name: As in the table.
        package: Distribution, for its version.
        make: Unfitted estimator from (problem, iterations).
        suits: Whether it can do a problem, and whether it makes sense there.
        clock: "cpu", or "wall" where the work is not done by this processor.
    """

    name: str
    package: str
    make: Callable[[Problem, int], Any]
    suits: Callable[[Problem], bool] = suits_any
    clock: str = "cpu"

    @property
    def version(self) -> str:
        """Installed version."""
        return importlib.metadata.version(self.package)

    def warm_up(self, losses: tuple[str, ...]) -> None:
        """Fit next to nothing, so that no library is charged for waking up."""
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((60, 3)), rng.integers(0, 2, 60)
        for loss in losses:
            problem = Problem(DataSet("warm-up", "warm-up", X, y), loss, 1.0)
            if self.suits(problem):
                timed_fit(self.make(problem, 1), problem.data)


@dataclass(slots=True)
class Search:
    """Fewest iterations of one peer on one problem; what was tried is kept for the next tolerance and the next run.

    Attributes:
        peer: Who.
        problem: On what.
        reference: The best possible objective; its upper end sinks where the peer does better.
        folder: Where tries are remembered.
        tried: Objective of each output and seconds of the fit, by iterations.
    """

    peer: Peer
    problem: Problem
    reference: Reference
    folder: Path
    tried: dict[int, tuple[list[float], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._path().exists():
            pairs = json.loads(self._path().read_text(encoding="utf-8"))
            self.tried = {int(iterations): (objective, seconds) for iterations, (objective, seconds) in pairs.items()}
        for objective, _ in self.tried.values():
            self.reference.note(self.problem, np.array(objective))

    def _path(self) -> Path:
        name = "".join(letter for letter in self.peer.name.lower() if letter.isalnum())
        return self.folder / f"{self.problem.key}-{name}-{self.peer.version}.json"

    def make(self, iterations: int) -> Any:
        """Unfitted estimator."""
        return self.peer.make(self.problem, iterations)

    def attempt(self, iterations: int) -> float:
        """Relative suboptimality after so many iterations."""
        if iterations not in self.tried:
            model = self.make(iterations)
            seconds = getattr(timed_fit(model, self.problem.data), self.peer.clock)
            objective = primal(self.problem, coef_of(model, self.problem.data))
            if not np.all(np.isfinite(objective)):  # it diverged; JSON has no infinite numbers
                objective = np.full(len(self.reference.upper), 1e300)
            self.reference.note(self.problem, objective)
            self.tried[iterations] = (objective.tolist(), seconds)
            replace_text(self._path(), json.dumps(self.tried))
        return self.reference.suboptimality(np.array(self.tried[iterations][0]))

    def fewest(self, tol: float, cap_s: float) -> int | None:
        """Fewest iterations that reach `tol`, or None when a fit of `cap_s` seconds is not enough."""
        failed, reached = 0, 1
        while self.attempt(reached) > tol:
            objective, seconds = self.tried[reached]
            if failed > 1 and objective == self.tried[failed][0]:
                return None  # it has stopped by itself
            within_cap = int(reached * cap_s / max(seconds, 1e-6))
            failed, reached = reached, min(2 * reached, within_cap, MAX_ITERATIONS)
            if reached <= failed:
                return None
        while reached - failed > max(1, reached // 32):  # to 3%: one iteration of a hundred is below the noise
            middle = (failed + reached) // 2
            if self.attempt(middle) > tol:
                failed = middle
            else:
                reached = middle
        return reached

    def seconds(self, iterations: int) -> float:
        """How long the fit of a try took."""
        return self.tried[iterations][1]

    def most_tried(self) -> int:
        """Most iterations that were tried."""
        return max(self.tried)

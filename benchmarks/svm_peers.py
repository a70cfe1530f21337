"""The two sides of the SVM benchmark, and the least that each peer has to be charged for.

A peer does not know how good its model is, and stops by measures of its own. So it is charged only for the fewest
iterations that bring its objective close enough to the best possible one: what an oracle would have told it. They are
found beforehand (doubling, then halving the interval) and remembered beside the data; every
time that is shown comes from the run itself.
"""

import gc
import importlib.metadata
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks.svm_data import DataSet, Reference, primal, replace
from estimators import ChicleSVM

MAX_ITERATIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class Seconds:
    """One fit: processor time of all threads of the process, and time on the wall."""

    cpu: float
    wall: float


def timed_fit(model: Any, data: DataSet) -> Seconds:
    """Time of a whole `fit`, whatever the library does in it, conversions included."""
    X = data.fresh()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, data.y)
        return Seconds(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall)


def strong(data: DataSet) -> float:
    """C of lambda = 0.01 n."""
    return 100.0 / data.num_samples


def ours(C: float, tol: float, n_threads: int = 1) -> ChicleSVM:
    """Our side of every comparison."""
    return ChicleSVM(C=C, tol=tol, max_iter=20_000, fit_intercept=False, n_threads=n_threads, random_state=0)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library.

    Attributes:
        name: As in the table.
        package: Distribution, for its version.
        make: Unfitted estimator from (C, num_samples, iterations).
        clock: "cpu", or "wall" where the work is not done by this processor.
    """

    name: str
    package: str
    make: Callable[[float, int, int], Any]
    clock: str = "cpu"

    @property
    def version(self) -> str:
        """Installed version."""
        return importlib.metadata.version(self.package)


def liblinear(C: float, num_samples: int, iterations: int) -> Any:
    """scikit-learn's LinearSVC; its own stopping rule is switched off."""
    from sklearn.svm import LinearSVC

    return LinearSVC(loss="hinge", C=C, tol=1e-12, max_iter=iterations, fit_intercept=False, random_state=0)


def sgd(C: float, num_samples: int, iterations: int) -> Any:
    """scikit-learn's averaged stochastic gradient descent on the same objective."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(
        loss="hinge",
        alpha=1 / (C * num_samples),
        average=True,
        tol=None,
        max_iter=iterations,
        fit_intercept=False,
        random_state=0,
    )


def snapml(C: float, num_samples: int, iterations: int) -> Any:
    """IBM's Snap ML on one thread."""
    from snapml import SupportVectorMachine

    return SupportVectorMachine(
        regularizer=1 / C, tol=1e-12, max_iter=iterations, fit_intercept=False, use_gpu=False, n_jobs=1, random_state=0
    )


def cuml(C: float, num_samples: int, iterations: int) -> Any:
    """RAPIDS' LinearSVC on a GPU; the copy to the device is part of its fit."""
    from cuml.svm import LinearSVC

    return LinearSVC(loss="hinge", C=C, tol=1e-12, max_iter=iterations, fit_intercept=False)


def installed_peers() -> tuple[list[Peer], list[str]]:
    """The peers that can run here, and a line about each that cannot."""
    peers = [Peer("liblinear", "scikit-learn", liblinear)]
    notes = []
    if importlib.util.find_spec("snapml"):
        peers.append(Peer("Snap ML", "snapml", snapml))
    else:
        notes.append("Snap ML is not here (pip install snapml), so its gates are not judged.")
    peers.append(Peer("SGD, averaged", "scikit-learn", sgd))
    try:
        import cuml as _  # noqa: F401
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # without a GPU each of the three fails in its own way
        notes.append(f"cuml is not here ({type(error).__name__}: {error}).")
    else:
        package = next(d for d in importlib.metadata.packages_distributions()["cuml"])
        peers.append(Peer("cuml", package, cuml, clock="wall"))
    return peers, notes


@dataclass(slots=True)
class Search:
    """Fewest iterations of one peer on one problem; what was tried is kept for the next tolerance and the next run.

    Attributes:
        peer: Who.
        data: On what.
        C: Factor of the sum of losses.
        reference: The best possible objective.
        cap_s: Wall seconds of one fit beyond which no longer one is tried.
        folder: Where tries are remembered.
    """

    peer: Peer
    data: DataSet
    C: float
    reference: Reference
    cap_s: float
    folder: Path
    tried: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._path().exists():
            pairs = json.loads(self._path().read_text(encoding="utf-8"))
            self.tried = {int(iterations): tuple(pair) for iterations, pair in pairs.items()}

    def _path(self) -> Path:
        name = self.peer.name.split(",")[0].replace(" ", "").lower()
        width = f"{self.reference.width:.3g}"
        return self.folder / f"{self.data.key}-C{self.C:.10g}-ref{width}-{name}-{self.peer.version}.json"

    def make(self, iterations: int) -> Any:
        """Unfitted estimator."""
        return self.peer.make(self.C, self.data.num_samples, iterations)

    def attempt(self, iterations: int) -> float:
        """Relative suboptimality after so many iterations."""
        if iterations not in self.tried:
            model = self.make(iterations)
            seconds = timed_fit(model, self.data).wall
            objective = primal(self.data, np.atleast_2d(model.coef_), self.C)
            self.tried[iterations] = (self.reference.suboptimality(objective), seconds)
            replace(self._path(), lambda file: file.write_text(json.dumps(self.tried), encoding="utf-8") and None)
        return self.tried[iterations][0]

    def fewest(self, tol: float) -> int | None:
        """Fewest iterations that reach `tol`, or None when the cap is not enough."""
        failed, reached = 0, 1
        while self.attempt(reached) > tol:
            within_cap = int(reached * self.cap_s / self.tried[reached][1])
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

    def most_tried(self) -> int:
        """Most iterations that were tried."""
        return max(self.tried)

"""The two sides of the SVM benchmark: ours, liblinear, Snap ML, SGD and, where there is a GPU, cuml."""

import importlib.metadata
import importlib.util
from typing import Any

from benchmarks.peers import Peer
from benchmarks.problems import Problem
from estimators import ChicleSVM


def ours(C: float, tol: float, n_threads: int = 1) -> ChicleSVM:
    """Our side of every comparison."""
    return ChicleSVM(C=C, tol=tol, max_iter=20_000, fit_intercept=False, n_threads=n_threads, random_state=0)


def liblinear(problem: Problem, iterations: int) -> Any:
    """scikit-learn's LinearSVC; its own stopping rule is switched off."""
    from sklearn.svm import LinearSVC

    return LinearSVC(loss="hinge", C=problem.C, tol=1e-12, max_iter=iterations, fit_intercept=False, random_state=0)


def sgd(problem: Problem, iterations: int) -> Any:
    """scikit-learn's averaged stochastic gradient descent on the same objective."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(
        loss="hinge",
        alpha=1 / (problem.C * problem.data.num_samples),
        average=True,
        tol=None,
        max_iter=iterations,
        fit_intercept=False,
        random_state=0,
    )


def snapml(problem: Problem, iterations: int) -> Any:
    """IBM's Snap ML on one thread."""
    from snapml import SupportVectorMachine

    return SupportVectorMachine(
        regularizer=1 / problem.C,
        tol=1e-12,
        max_iter=iterations,
        fit_intercept=False,
        use_gpu=False,
        n_jobs=1,
        random_state=0,
    )


def cuml(problem: Problem, iterations: int) -> Any:
    """RAPIDS' LinearSVC on a GPU; the copy to the device is part of its fit."""
    from cuml.svm import LinearSVC

    return LinearSVC(loss="hinge", C=problem.C, tol=1e-12, max_iter=iterations, fit_intercept=False)


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

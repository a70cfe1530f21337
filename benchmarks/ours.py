"""Our side of the benchmarks of linear models: one way to make the estimator, and fits that end when time is up."""

import time
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fits import Seconds, timed_fit
from benchmarks.problems import Problem
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome, Runtime
from estimators import ChicleLogisticRegression, ChicleSVM

MAX_ITER = 20_000


@dataclass(frozen=True, slots=True)
class Limited:
    """A runtime that ends its job after `limit_s` of processor time, between two iterations.

    The estimator takes it as any other. A callback would do the same, and cost time of its own in every iteration.
    """

    runtime: Runtime
    limit_s: float

    def most_tasks(self) -> int:
        """Of the runtime inside."""
        return self.runtime.most_tasks()

    def run(self, job: Job) -> Outcome:
        """Run the job to its end, or until time is up."""
        deadline = time.process_time() + self.limit_s
        told = job.on_iteration

        def on_iteration(record: IterationRecord) -> bool:
            asked = told(record) if told is not None else False
            return bool(asked) or time.process_time() >= deadline

        return self.runtime.run(replace(job, on_iteration=on_iteration))


def ours(
    problem: Problem,
    tol: float,
    *,
    num_tasks: int = 1,
    max_iter: int = MAX_ITER,
    limit_s: float = 600.0,
    **parameters: Any,
) -> Any:
    """An unfitted estimator for a problem, on one thread unless `parameters` say otherwise."""
    parameters = {
        "C": problem.C,
        "tol": tol,
        "max_iter": max_iter,
        "fit_intercept": False,
        "n_threads": 1,
        "random_state": 0,
        "runtime": Limited(InProcess(num_tasks=num_tasks), limit_s),
        **parameters,
    }
    if problem.loss == "logistic":
        return ChicleLogisticRegression(**{"multi_class": "ovr", **parameters})  # as all peers have it
    return ChicleSVM(**{"loss": problem.loss, **parameters})


def method_of(estimator: Any) -> str:
    """Which method a fit took."""
    return str(estimator.history_.method).partition(", because")[0]


@dataclass(frozen=True, slots=True)
class OurFit:
    """A fit of ours and what it took.

    Attributes:
        model: The fitted estimator.
        seconds: How long it took.
    """

    model: Any
    seconds: Seconds

    @property
    def has_converged(self) -> bool:
        """Whether it stopped because of its certificate."""
        return bool(self.model.duality_gap_ <= self.model.tol)

    def text(self) -> str:
        """Iterations, the method where the product names it, and how far it got where it did not get there."""
        method = method_of(self.model)
        short = "" if self.has_converged else f", gap {self.model.duality_gap_:.0e}: NOT CONVERGED"
        return f"{self.model.n_iter_} it.{f' {method}' if method else ''}{short}"

    def details(self) -> dict[str, Any]:
        """For the JSON."""
        return {
            "iterations": int(self.model.n_iter_),
            "gap": float(self.model.duality_gap_),
            "has_converged": self.has_converged,
            "method": method_of(self.model),
            "cpu_s": self.seconds.cpu,
            "wall_s": self.seconds.wall,
        }


def fit_ours(problem: Problem, tol: float, **parameters: Any) -> OurFit:
    """A fit of ours; `parameters` are those of `ours`."""
    model = ours(problem, tol, **parameters)
    return OurFit(model, timed_fit(model, problem.data))

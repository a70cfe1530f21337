"""Fits of a linear classifier over the same rows: one copy of them, splits as codes, and paths along C."""

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import JobFailedError
from chicle_elastic.monitoring.records import IterationRecord
from estimators.checks import Columns
from estimators.place import policies_of, runtime_of
from estimators.search.calls import Fitted, SearchCall, failures_noted
from estimators.search.rows import Rows, SplitCodes, split_codes
from estimators.training.weights import class_weight_vector, require_two_classes

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome
    from chicle_elastic.solvers.linear.path import Stage

MOST_CODES = 1 << 12
"""Codes of a job at most; with more splits than that takes there are several jobs."""


@dataclass(slots=True, eq=False, kw_only=True)
class Chain:
    """Fits on one split that differ in C, from the smallest on."""

    calls: list[SearchCall]  # at least one

    @property
    def estimator(self) -> Any:
        """With the parameters that all have in common."""
        return self.calls[0].estimator


@dataclass(slots=True, eq=False, kw_only=True)
class Stages:
    """A chain as part of a job."""

    chain: Chain  # the fits
    labels: Array  # classes of the split, in order
    trainers: "list[Stage]"  # one per fit

    @property
    def kind(self) -> tuple[int, bool]:
        """What stages of a job have in common: how many classes, and whether one softmax has all of them."""
        return len(self.labels), self.trainers[0].has_one_softmax


@dataclass(slots=True, eq=False, kw_only=True)
class ClassifierWork:
    """One job for its chains, or a few where they cannot be in one."""

    rows: Rows  # the data
    chains: list[Chain]  # what is to be fitted
    needs_main_thread: bool = False  # whether the job is a cluster's, or takes all threads itself
    num_threads: int | None = None  # threads of a task where neither estimators nor the place of a cluster say so
    _runtime: Any = field(default=None, init=False)

    def may_have(self, estimator: Any) -> bool:
        """Whether fits of `estimator` can be in the same job."""
        names = ("runtime", "n_workers", "policy", "chunk_size")
        mine = self.chains[0].estimator
        return all(getattr(mine, name) == getattr(estimator, name) for name in names)

    def run(self, stop: threading.Event) -> None:
        """See `plan.Work`."""
        calls = [call for chain in self.chains for call in chain.calls]
        with failures_noted(calls):
            for call in calls:
                call.estimator._validate_params()
            self._runtime = runtime_of(self.chains[0].estimator)
            self.rows.check()
            self._run_some(self.chains, stop)

    def _run_some(self, chains: Sequence[Chain], stop: threading.Event) -> None:
        """Run a job for each kind of stages; in two halves where that takes too many codes."""
        codes = split_codes(self.rows.targets, [chain.calls[0].train for chain in chains])
        if len(codes.classes) > MOST_CODES and len(chains) > 1:
            half = len(chains) // 2
            self._run_some(chains[:half], stop)
            self._run_some(chains[half:], stop)
            return
        found = [stages for number, chain in enumerate(chains) if (stages := self._stages(chain, codes, number))]
        found.sort(key=lambda stages: stages.kind)
        for _, alike in groupby(found, key=lambda stages: stages.kind):
            if not stop.is_set():
                self._run_job(list(alike), codes, stop)

    def _stages(self, chain: Chain, codes: SplitCodes, split: int) -> Stages | None:
        """The chain as stages; None where its split cannot be fitted, which its calls then know."""
        estimator = chain.estimator
        counts = codes.counts[:, split]
        totals = np.bincount(codes.codes, weights=self.rows.weights, minlength=len(counts)) * counts
        num_classes = len(self.rows.classes)
        present = np.bincount(codes.classes, weights=counts, minlength=num_classes) > 0
        totals = np.bincount(codes.classes, weights=totals, minlength=num_classes)[present]
        labels = self.rows.classes[present]
        try:
            name = type(estimator).__name__
            require_two_classes(name, labels, totals, None)
            class_weights = class_weight_vector(estimator.class_weight, labels, totals)
            require_two_classes(name, labels, totals, class_weights)
        except ValueError as error:
            for call in chain.calls:
                call.outcome = error
            return None
        place = np.cumsum(present) - 1
        place[~present] = 0  # none of their rows counts
        code_classes = place[codes.classes]
        factors = counts if class_weights is None else counts * class_weights[code_classes]
        training: Any = SimpleNamespace(classes=labels, class_weights=None)
        trainers = [call.estimator._trainer(training, self._runtime) for call in chain.calls]
        fold: dict[str, Any] = {"class_weights": tuple(factors.tolist()), "code_classes": tuple(code_classes.tolist())}
        if self.num_threads and not estimator.n_threads:
            fold["num_threads"] = self.num_threads
        trainers = [replace(each, **fold) for each in trainers]
        return Stages(chain=chain, labels=labels, trainers=trainers)

    def _run_job(self, parts: list[Stages], codes: SplitCodes, stop: threading.Event) -> None:
        from chicle_elastic.runtime.training.job import Job
        from chicle_elastic.solvers.linear.path import PathTrainer

        estimator = parts[0].chain.estimator
        seed = int(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max))
        columns = Columns.of(self.rows.features)
        source = ArraySource(
            columns.rows(self.rows.features),
            codes.codes,
            weights=self.rows.weights,
            num_classes=len(codes.classes),
            max_tasks=self._runtime.most_tasks(),
            chunk_bytes=estimator.chunk_size,
            seed=seed,
        )
        calls = [call for part in parts for call in part.chain.calls]
        most = tuple(int(call.estimator.max_iter) for call in calls)
        trainer = PathTrainer(stages=tuple(each for part in parts for each in part.trainers), max_iterations=most)

        def on_iteration(record: IterationRecord) -> bool:
            return stop.is_set()

        outcome = self._runtime.run(
            Job(
                trainer=trainer,
                source=source,
                max_iterations=2 * sum(most),  # while rows are missing a stage may take more than its own
                seed=seed,
                policies=policies_of(estimator),
                on_iteration=on_iteration,
            )
        )
        if outcome.is_interrupted:
            raise KeyboardInterrupt
        if not stop.is_set():
            self._learn(parts, trainer, columns, outcome)

    def _learn(self, parts: list[Stages], trainer: Any, columns: Columns, outcome: "Outcome") -> None:
        """Give each call what its stage has found."""
        from chicle_elastic.solvers.linear.path import StageResult, results_of

        certificate = outcome.certificate
        results = [] if certificate is None else results_of(certificate.progress)
        if certificate is None or len(results) + 1 < len(trainer.stages):
            raise JobFailedError(f"the job of a search has ended before its last fit: {outcome.reason}")
        gap = trainer.relative_gap(outcome.model, certificate)
        iterations = len(outcome.history) - sum(result.iterations for result in results)
        results.append(StageResult(iterations=iterations, gap=gap, model=outcome.model))
        seconds = _seconds(outcome, len(results))
        owners = [(part, call) for part in parts for call in part.chain.calls]
        for (part, call), result, taken in zip(owners, results, seconds, strict=True):
            estimator = call.estimator
            training: Any = SimpleNamespace(classes=part.labels, columns=columns)
            attributes = estimator._predicting_attributes(trainer.stages[0], training, result.model, result.iterations)
            attributes = {**self.rows.names, **attributes, "duality_gap_": result.gap}
            call.outcome = Fitted(attributes=attributes, seconds=taken, warn=_warning(estimator, result.gap))


def _seconds(outcome: "Outcome", num_stages: int) -> list[float]:
    """What each stage took."""
    from chicle_elastic.solvers.linear.path import STAGE

    seconds, before_s = [0.0] * num_stages, 0.0
    for record in outcome.history:
        seconds[round(record.figures[STAGE])] += record.time_s - before_s
        before_s = record.time_s
    return seconds


def _warning(estimator: Any, gap: float) -> Any:
    """What warns of a fit that has not converged; None for one that has."""
    if gap <= estimator.tol:
        return None
    text = (
        f"{type(estimator).__name__} has not converged: after max_iter={estimator.max_iter} iterations the relative "
        f"duality gap is {gap:.1e}, above tol={estimator.tol:g}. To converge: scale the features (StandardScaler), "
        "raise max_iter or tol, or lower C."
    )
    return lambda: warnings.warn(text, ConvergenceWarning, stacklevel=3)

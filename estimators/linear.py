"""The base of the linear estimators: what classifiers and regressors do with a job, its outcome and the attributes."""

import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from chicle_elastic.errors import DataError
from chicle_elastic.solvers.linear.certified import STUCK, largest_ratio
from estimators.checks import require_finite_model, require_moderate
from estimators.containers import set_attributes_like
from estimators.params import LinearParams, parameters
from estimators.place import source_of
from estimators.run import end_interrupted, fit_linear, gap_words
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from estimators.training.data import TrainingData


@parameters
class LinearEstimator(CallbackSupportMixin, LinearParams, metaclass=ABCMeta):
    """Estimator of a linear model, trained until its duality gap is small.

    Attributes
    ----------
    n_iter_ : int
        Iterations; all outputs share them.
    """

    @abstractmethod
    def _advice(self) -> str:
        """Return the remedy for a fit that has not converged, beyond those of every linear estimator."""

    @abstractmethod
    def _begun(self, training: Any, runtime: "Runtime") -> tuple[Any, Mapping[str, Any]]:
        """Return the trainer, and further arguments of `run_job`."""

    @abstractmethod
    def _predicting_attributes(
        self, trainer: Any, training: Any, model: "Array", num_iterations: int
    ) -> dict[str, Any]:
        """Return the attributes that predict with this model."""

    @abstractmethod
    def _objective_of(self, values: Any) -> Any:
        """Return objectives of the outputs, or one NaN for all of them, as an attribute has them."""

    def _fit_job(
        self, validated: "Callable[..., TrainingData]", runtime: "Runtime", X: Any, y: Any, sample_weight: Any
    ) -> Self:
        """Fit the model by a job, as `fit` says it; `validated` makes the training set."""
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        training = validated(self, X, y, sample_weight, max_tasks=runtime.most_tasks(), seed=seed)
        if hasattr(runtime, "submit"):  # no objects of this process go there
            from estimators.submitted.fit import fit_elsewhere

            fit_elsewhere(self, runtime, X if training.features is None else training.features, y, sample_weight)
            set_attributes_like(self, X)
            return self
        require_moderate(self, training.hook_arguments, is_first=True)
        try:
            trainer, beginning = self._begun(training, runtime)
            source = source_of(runtime, training.source, trainer)
            if source is not training.source:
                training = replace(training, source=source)
            outcome = fit_linear(self, runtime, trainer, training, seed, **beginning)
        except DataError:
            training.require_finite(self)  # says it with names of columns
            raise
        require_finite_model(self, outcome.model, training.hook_arguments)
        self._set_attributes(trainer, training, outcome)
        if outcome.is_interrupted:
            end_interrupted(self, gap_words(self.duality_gap_, self.tol))
        if (self.n_iter_ >= self.max_iter or outcome.reason == STUCK) and not self.duality_gap_ <= self.tol:
            require_moderate(self, training.hook_arguments)
            warnings.warn(
                self._not_converged(training.findings(self, trainer, outcome.model), outcome.reason),
                ConvergenceWarning,
                stacklevel=4,  # the caller of fit, behind the decorator
            )
        set_attributes_like(self, X)
        return self

    def _set_attributes(self, trainer: Any, training: Any, outcome: "Outcome") -> None:
        from estimators.watch import methods_of

        attributes = self._predicting_attributes(trainer, training, outcome.model, len(outcome.history))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.history_, self.ledger_ = outcome.history, outcome.ledger
        if not self.history_.methods:
            self.history_.methods = methods_of(outcome.history, partial(trainer.method, training.source.schema))
        primal: Any = np.nan
        dual: Any = np.nan
        self.duality_gap_ = np.nan
        if outcome.certificate is not None:  # else samples were lost and not yet restored: nothing can be certified
            primal, dual = trainer.primal_and_dual(outcome.model, outcome.certificate)
            self.duality_gap_ = largest_ratio(primal - dual, primal, trainer.floor(outcome.certificate))
        self.objective_ = self._objective_of(primal)
        self.dual_objective_ = self._objective_of(dual)

    def _not_converged(self, findings: tuple[str, ...] = (), reason: str = "") -> str:
        """How far the fit came, on how many tasks, what the data looks like, and what to do."""
        counts = self.history_.column("num_tasks")
        fewest, most = int(counts.min()), int(counts.max())
        tasks = "" if most == 1 else f" on {most} tasks" if fewest == most else f" on {fewest} to {most} tasks"
        if np.isnan(self.duality_gap_):
            state = "no duality gap is certified, because the samples of lost nodes have not been reloaded yet"
        else:
            state = f"the relative duality gap is {self.duality_gap_:.1e}, above tol={self.tol:g}"
        fewer_tasks = ["use fewer tasks"] if most > 1 and self._is_slower_on_tasks() else []
        more = "raise tol" if reason == STUCK else "raise max_iter or tol"
        remedies: list[str] = ["scale the features (StandardScaler)", *fewer_tasks, more, *self._remedies()]
        looks = f" The data looks like this: {'; '.join(findings)}." if findings else ""
        after = f"{self.n_iter_} iterations" if reason == STUCK else f"max_iter={self.max_iter} iterations"
        stuck = f", and {STUCK}" if reason == STUCK else ""
        return (
            f"{type(self).__name__} has not converged: after {after}{tasks} {state}{stuck}."
            f"{looks} To converge: {', '.join(remedies[:-1])}, or {remedies[-1]}."
        )

    def _remedies(self) -> tuple[str, ...]:
        """Return what else may help."""
        return (self._advice(),)

    def _is_slower_on_tasks(self) -> bool:
        """Say whether the steps of the fit depend on the number of tasks; most are those of one task."""
        return False

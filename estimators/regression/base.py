"""The base of the linear regressors: the one way through `fit`, and the attributes.

As that of the classifiers (`estimators.base`), with real targets, and no duals to be kept. A job has one target;
several are the business of `targets`.
"""

import warnings
from abc import ABCMeta, abstractmethod
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, Options

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError
from chicle_elastic.solvers.linear.certified import STUCK, largest_ratio
from estimators.checks import LeanEstimator, require_finite_model, require_moderate
from estimators.containers import set_attributes_like
from estimators.regression.common import RegressionMixin
from estimators.run import end_interrupted, fit_linear, gap_words, needs_no_job
from estimators.streaming import is_folder
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from chicle_elastic.solvers.linear.certified import CertifiedTrainer
    from estimators.regression.common import RegressionSet
    from estimators.regression.targets import Samples

FEW_VALUES = 1 << 20
"""Values of X up to which a copy of them costs less than a job."""


class LinearRegressor(RegressionMixin, RegressorMixin, CallbackSupportMixin, LeanEstimator, metaclass=ABCMeta):
    """Linear regressor, trained until its duality gap is small.

    Its parameters and attributes are described where they are meant to be read, in the estimators.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "fit_intercept": ["boolean"],
        "tol": [Interval(Real, 0.0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "chunk_size": [Interval(Integral, 1, None, closed="left"), None],
        "runtime": [HasMethods(["run", "most_tasks"]), None],
        "n_workers": [Interval(Integral, 1, None, closed="left"), Options(Integral, {-1}), tuple, None],
        "policy": [HasMethods(["decide"]), tuple, None],
        "logdir": [str, PathLike, None],
    }

    n_iter_: int

    fit_intercept: bool
    tol: float
    max_iter: int
    random_state: Any
    verbose: int
    chunk_size: int | None
    runtime: "Runtime | None"
    n_workers: int | tuple[int, int] | None
    policy: Any
    logdir: str | PathLike[str] | None

    @abstractmethod
    def _trainer(self) -> "CertifiedTrainer":
        """The algorithm, with the parameters."""

    @abstractmethod
    def _advice(self) -> str:
        """Return remedies for a fit that has not converged, beyond those of every regressor."""

    def _fit_targets(self, runtime: "Runtime", samples: "Samples") -> dict[str, Any]:
        """Return the attributes of a fit to several targets, or of one where `needs_no_job` says so."""
        from estimators.regression.targets import fit_one_by_one

        return fit_one_by_one(self, samples)

    def _is_little(self, shape: tuple[int, ...]) -> bool:
        """Say whether rows of this shape are fitted best from their products at once, in this process."""
        return False

    def _may_be_little(self, X: Any) -> bool:
        """Say whether X may have little data; of what has no rows and columns yet that is seen when it has them."""
        shape = tuple(getattr(X, "shape", ()))
        has_lists = not isinstance(X, np.ndarray) and shape[1:] == (1,)
        return len(shape) != 2 or has_lists or self._is_little(shape)

    def _initial_model(self) -> Array | None:
        """The model to begin with, shape (n_features + 1,); by default that of the trainer."""
        return None

    def _intercept_factor(self) -> float:
        """Return the factor that turns the last value of the model into the intercept."""
        return 1.0

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples. float16 to float64, bfloat16, uint8, int8 and bool are used as they are (sparse ones as float32 or
            float64), without a copy where they are C-contiguous or CSR, and so are tensors on the CPU. A
            `chicle_elastic.chunks.folder.ChunkFolder` brings its targets and weights along.
        y : array-like of shape (n_samples,), or (n_samples, n_targets) where the estimator takes several
            Real targets; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of the loss per sample, >= 0; none for a ChunkFolder.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        DataError
            A value of X is NaN or infinite, or so large that squares overflow; the message names its column.
        ValueError
            X, y or a parameter cannot be used.
        KeyboardInterrupt
            Ctrl-C; the attributes are set, as after fewer iterations: those of the best certified model, or of the last
            one where there is none yet. Before the first iteration has ended nothing changes.

        Warns
        -----
        ConvergenceWarning
            The duality gap is above `tol` after `max_iter` iterations, or Ctrl-C has ended the fit.
        RuntimeWarning
            A policy is disabled, because it raised, decided nonsense or did not answer.
        """
        from estimators.place import runtime_of
        from estimators.regression.common import regression_set

        runtime = runtime_of(self)
        shape = _shape(y)
        has_targets = self._takes_targets and shape[1:] > (1,)
        if not is_folder(X) and (has_targets or (len(shape) == 1 and needs_no_job(self) and self._may_be_little(X))):
            from estimators.regression.targets import Samples, of_one_target

            samples = Samples.of(self, X, y, sample_weight)
            attributes: dict[str, Any] = {}
            if has_targets or self._is_little(samples.X.shape):
                attributes = self._fit_targets(runtime, samples)
            if has_targets or attributes.get("duality_gap_", np.inf) <= self.tol:
                for name, value in (attributes if has_targets else of_one_target(attributes)).items():
                    setattr(self, name, value)
                set_attributes_like(self, X)
                return self
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        training = regression_set(self, X, y, sample_weight, max_tasks=runtime.most_tasks(), seed=seed)
        if hasattr(runtime, "submit"):  # no objects of this process go there
            from estimators.submitted.fit import fit_elsewhere

            fit_elsewhere(self, runtime, X if training.features is None else training.features, y, sample_weight)
            set_attributes_like(self, X)
            return self
        require_moderate(self, training.hook_arguments, is_first=True)
        trainer = self._trainer()
        try:
            first = self._initial_model()
            first = None if first is None else training.columns.of_fit(first)
            is_warm = first is not None
            outcome = fit_linear(self, runtime, trainer, training, seed, is_warm=is_warm, initial_model=first)
        except DataError:
            training.require_finite(self)  # says it with names of columns
            raise
        require_finite_model(self, outcome.model, training.hook_arguments)
        self._set_attributes(trainer, training, outcome)
        if outcome.is_interrupted:
            end_interrupted(self, gap_words(self.duality_gap_, self.tol))
        is_stuck = outcome.reason == STUCK
        if (self.n_iter_ >= self.max_iter or is_stuck) and not self.duality_gap_ <= self.tol:
            require_moderate(self, training.hook_arguments)
            after = f"{self.n_iter_} iterations" if is_stuck else f"max_iter={self.max_iter} iterations"
            warnings.warn(
                f"{type(self).__name__} has not converged: after {after} the relative duality gap is "
                f"{self.duality_gap_:.1e}, above tol={self.tol:g}{f', and {STUCK}' if is_stuck else ''}. To converge: "
                f"scale the features (StandardScaler), {self._advice()}, or raise "
                f"{'tol' if is_stuck else 'max_iter or tol'}.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of fit, behind the decorator
            )
        set_attributes_like(self, X)
        return self

    def _predicting_attributes(
        self, trainer: "CertifiedTrainer", training: "RegressionSet", model: Array, num_iterations: int
    ) -> dict[str, Any]:
        """Return the attributes that predict with this model."""
        (w,) = training.columns.full(model)
        return {
            "coef_": w[:-1].copy(),
            "intercept_": float(w[-1]) * self._intercept_factor(),
            "n_iter_": num_iterations,
        }

    def _set_attributes(self, trainer: "CertifiedTrainer", training: "RegressionSet", outcome: "Outcome") -> None:
        from estimators.watch import methods_of

        attributes = self._predicting_attributes(trainer, training, outcome.model, len(outcome.history))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.history_, self.ledger_ = outcome.history, outcome.ledger
        if not self.history_.methods:
            self.history_.methods = methods_of(outcome.history, partial(trainer.method, training.source.schema))
        if outcome.certificate is None:  # samples were lost and not yet restored: nothing can be certified
            self.objective_ = self.dual_objective_ = self.duality_gap_ = float("nan")
            return
        primal, dual = trainer.primal_and_dual(outcome.model, outcome.certificate)
        self.objective_, self.dual_objective_ = float(np.sum(primal)), float(np.sum(dual))
        self.duality_gap_ = largest_ratio(primal - dual, primal, trainer.floor(outcome.certificate))


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape; NumPy cannot look at every tensor."""
    return tuple(values.shape) if hasattr(values, "shape") else np.asarray(values).shape

"""The base of the linear regressors: the one way through `fit`, and the attributes.

As that of the classifiers (`estimators.base`), with real targets, and no duals to be kept. A job has one target;
several are the business of `targets`.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context

from chicle_elastic.chunks.views import Array
from estimators.containers import set_attributes_like
from estimators.linear import LinearEstimator
from estimators.params import parameters
from estimators.regression.common import RegressionMixin
from estimators.run import needs_no_job
from estimators.streaming import is_folder

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.certified import CertifiedTrainer
    from estimators.regression.common import RegressionSet
    from estimators.regression.targets import Samples

OF_COLUMNS = ("n_features_in_", "feature_names_in_")
"""Attributes that belong to `coef_`, but are set before it."""
OF_PARTS = ("_products", "n_samples_seen_")
"""Attributes that `partial_fit` goes on with."""
FEW_VALUES = 1 << 20
"""Values of X up to which a copy of them costs less than a job."""


@parameters
class LinearRegressor(RegressionMixin, RegressorMixin, LinearEstimator, metaclass=ABCMeta):
    """Linear regressor, trained until its duality gap is small; the base of those with a loss of your own.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), float64
        Weights of the features.
    intercept_ : float
        Intercept.
    n_iter_ : int
        Iterations; of several targets the most.
    duality_gap_ : float
        (P - D) / P, evaluated in float64 at the returned model; of several targets the largest.
    objective_ : float
        Primal objective P, the function above.
    dual_objective_ : float
        Dual objective D <= P.
    """

    @abstractmethod
    def _trainer(self) -> "CertifiedTrainer":
        """The algorithm, with the parameters."""

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

        model, columns = self.__dict__.get("coef_"), {n: v for n, v in vars(self).items() if n in OF_COLUMNS}
        try:
            runtime = runtime_of(self)
            shape = _shape(y)
            has_targets = self._takes_targets and shape[1:] > (1,)
            may_be_alone = has_targets or (len(shape) == 1 and needs_no_job(self) and self._may_be_little(X))
            if may_be_alone and not is_folder(X):
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
            return self._fit_job(regression_set, runtime, X, y, sample_weight)
        finally:
            is_as_before = model is not None and self.__dict__.get("coef_") is model  # the fit has failed
            for name in OF_COLUMNS if is_as_before else OF_PARTS:
                self.__dict__.pop(name, None)
            if is_as_before:
                self.__dict__.update(columns)

    def _begun(self, training: "RegressionSet", runtime: "Runtime") -> tuple[Any, Mapping[str, Any]]:
        first = self._initial_model()
        first = None if first is None else training.columns.of_fit(first)
        return self._trainer(), {"initial_model": first}

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

    def _objective_of(self, values: Any) -> float:
        return float(np.sum(values))


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape; NumPy cannot look at every tensor."""
    return tuple(values.shape) if hasattr(values, "shape") else np.asarray(values).shape

"""Ridge regression: of given strength, of a strength found by cross-validation, and as a classifier."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import field
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import check_cv
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from estimators.checks import LeanEstimator
from estimators.containers import set_attributes_like
from estimators.params import Above0, AtLeast0, ClassWeight, Count, LinearParams, parameters
from estimators.persistence import SaveMixin
from estimators.prediction import LinearPredictionMixin
from estimators.regression.base import FEW_VALUES, LinearRegressor
from estimators.regression.common import RegressionMixin
from estimators.regression.more_rows import MoreRowsMixin
from estimators.streaming import is_folder

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
    from estimators.regression.targets import Products, Results, Samples


@parameters
class ChicleRidge(MoreRowsMixin, LinearRegressor):
    """Linear least squares with l2 penalty and a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.Ridge`, and minimises the same function,
    ``sum(weight * (y - X @ coef - intercept)**2) + alpha * |coef|**2``. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleRidge                                         Ridge
    ======================  ==================================================  ============================
    ``alpha``               a number > 0                                        >= 0, or one per target
    targets                 one or more; of a ChunkFolder one                   one or more
    ``tol``                 relative duality gap (P - D) / P, certified before  measure of the solver, 1e-4
                            the fit stops; 1e-6
    ``max_iter``            iterations, each of one pass over the data; 1000    iterations of the solver
    method                  one factor where all products of columns, or of     ``solver``, ``positive``
                            rows, fit into a message, else conjugate gradients
    ``random_state``        decides which rows share a chunk                    for some solvers
    dtype                   floats and bytes stay as they are, but for          ``coef_`` has the dtype of X
                            several targets and little data, whose X is
                            copied as float64; sums and attributes are float64
    only in one             ``verbose``, ``chunk_size``, ``runtime``,           ``copy_X``, arrays on a
                            ``n_workers``, ``policy``, ``logdir``,              device
                            ``fit(ChunkFolder(path))``, ``save``, ``load``,
                            ``to_sklearn``
    ======================  ==================================================  ============================

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the squared length of `coef_`, > 0. Larger values regularise more.
    tol : float, default=1e-6
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features), float64
        Weights of the features.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    objective_ : float or ndarray of shape (n_targets,)
        Primal objective P, the function above.
    dual_objective_ : float or ndarray of shape (n_targets,)
        Dual objective D <= P.

    See Also
    --------
    sklearn.linear_model.Ridge : On small data and one machine it is as good or faster.

    Notes
    -----
    The duals of a fit are the weighted residuals, so the gap follows from the gradient: with centred rows X_c it is
    ``|X_c.T @ (weight * residual) - alpha * coef|**2 / alpha``.

    References
    ----------
    Rifkin and Lippert 2007, "Notes on regularized least-squares".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from estimators import ChicleRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChicleRidge(alpha=0.1).fit(X, y)
    >>> bool(model.duality_gap_ <= 1e-6), round(model.score(X, y), 3)
    (True, 0.513)
    """

    _twin = "sklearn.linear_model.Ridge"
    _takes_targets = True

    alpha: Above0 = field(default=1.0, kw_only=False)
    tol: AtLeast0 = 1e-6

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.losses import SquaredEpsilonInsensitive
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer

        return RegressionTrainer(
            loss=SquaredEpsilonInsensitive(0.0),
            alpha=2.0 * float(self.alpha),
            tol=float(self.tol),
            intercept_scaling=1.0 if self.fit_intercept else 0.0,
            penalises_intercept=False,
        )

    def _fit_targets(self, runtime: "Runtime", samples: "Samples") -> dict[str, Any]:
        from chicle_elastic.runtime.in_process import InProcess
        from chicle_elastic.runtime.training.blas_threads import one_blas_thread
        from estimators.regression.targets import Products, fit_at_once

        is_alone = isinstance(runtime, InProcess) and runtime.most_tasks() == 1
        if not is_alone or getattr(self, "_skl_callbacks", False) or not samples.are_products_small():
            return super()._fit_targets(runtime, samples)
        alphas = np.full(samples.Y.shape[1], float(self.alpha))
        with one_blas_thread() if self._is_little(samples.X.shape) else nullcontext():
            products = Products(samples, has_intercept=bool(self.fit_intercept))
            return fit_at_once(self, samples, products, alphas, alone=ChicleRidge if len(alphas) > 1 else None)

    def _results(self, products: "Products", first: Array | None) -> "Results":
        from estimators.regression.targets import results_of

        return results_of(products, np.full(len(products.squares), float(self.alpha)))

    def _is_little(self, shape: tuple[int, ...]) -> bool:
        n, d = (*shape, 0, 0)[:2]
        return n * d <= (MOST_BLOCK_VALUES if n < d else FEW_VALUES)  # no method of a job has products of rows

    def _advice(self) -> str:
        return "raise alpha"


@parameters
class ChicleRidgeCV(RegressionMixin, RegressorMixin, LeanEstimator):
    """Ridge regression whose penalty is found by cross-validation, with a certified duality gap, in this process.

    It is used like :class:`sklearn.linear_model.RidgeCV`, and finds the same penalty and model. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleRidgeCV                                       RidgeCV
    ======================  ==================================================  ============================
    ``alphas``              > 0                                                 with ``cv`` also 0
    sparse rows             up to as many values of products of columns, or     any
                            of rows, as the data has; then
                            :class:`ChicleSearchCV`
    ``tol``                 relative duality gap of the model, 1e-6             none
    dtype                   attributes are float64                              those of X
    only in one             ``max_iter``, ``save``, ``load``, ``to_sklearn``    ``gcv_mode``, metadata
    ======================  ==================================================  ============================

    Parameters
    ----------
    alphas : float or array-like of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        Penalties to choose from, each > 0.
    fit_intercept : bool, default=True
        Whether there is an intercept; it is not penalised.
    scoring : str or callable, default=None
        What the choice is by, as in :class:`sklearn.model_selection.GridSearchCV`; None is the mean squared error
        where each row is left out, and R^2 with `cv`.
    cv : int, cross-validation generator or iterable, default=None
        Folds; None leaves out each row, for the price of one fit.
    store_cv_results : bool, default=False
        Whether to keep `cv_results_`; not with `cv`.
    alpha_per_target : bool, default=False
        Whether each target has a penalty of its own; not with `cv`.
    tol : float, default=1e-6
        Relative duality gap of the model, as in :class:`ChicleRidge`.
    max_iter : int, default=1000
        Most iterations for a target whose gap rounding leaves above `tol`, as in :class:`ChicleRidge`.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
        The penalty, or with `alpha_per_target` that of each target.
    best_score_ : float or ndarray of shape (n_targets,)
        Its score: minus the mean squared error where `scoring` and `cv` are None.
    cv_results_ : ndarray of shape (n_samples, n_alphas) or (n_samples, n_targets, n_alphas)
        With `store_cv_results`: squared errors of rows that were left out (times their weights), or with `scoring`
        predictions for them.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features), float64
        Weights of the features.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    n_iter_ : int
        Iterations of the fit to all rows; of several targets the most.
    duality_gap_ : float
        (P - D) / P of that fit; of several targets the largest.
    objective_ : float or ndarray of shape (n_targets,)
        Its primal objective P, that of :class:`ChicleRidge`.
    dual_objective_ : float or ndarray of shape (n_targets,)
        Its dual objective D <= P.
    history_ : chicle_elastic.monitoring.history.History
        `history_.method` says how the model was found.
    ledger_ : chicle_elastic.monitoring.job_ledger.JobLedger
        All rows as one chunk.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X had some.

    See Also
    --------
    ChicleSearchCV : Searches on nodes, of chunk folders, and for other parameters.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from estimators import ChicleRidgeCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> ChicleRidgeCV(alphas=[1e-3, 1e-2, 1e-1, 1.0]).fit(X, y).alpha_
    0.01
    """

    _twin = "sklearn.linear_model.RidgeCV"
    _takes_targets = True
    _file_arrays: ClassVar[tuple[str, ...]] = (*RegressionMixin._file_arrays, "cv_results_")
    _file_values: ClassVar[tuple[str, ...]] = (*RegressionMixin._file_values, "alpha_", "best_score_")

    alphas: Annotated[float | Sequence[float], "array-like", Interval(Real, 0, None, closed="neither")] = field(
        default=(0.1, 1.0, 10.0), kw_only=False
    )
    fit_intercept: bool = True
    scoring: Annotated[Any, StrOptions(set(get_scorer_names())), callable, None] = None
    cv: Annotated[Any, "cv_object"] = None
    store_cv_results: bool = False
    alpha_per_target: bool = False
    tol: AtLeast0 = 1e-6
    max_iter: Count = 1000

    alpha_: Any = field(init=False)
    best_score_: Any = field(init=False)
    cv_results_: Array = field(init=False)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose the penalty, and fit the model to all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Real targets.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of the loss per sample, >= 0, and of the scores.

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
        """
        from estimators.regression.targets import Products, Samples, fit_at_once, of_one_target

        alphas = np.atleast_1d(np.asarray(self.alphas, dtype=np.float64))
        if alphas.ndim != 1 or not len(alphas) or not (alphas > 0).all():
            raise UsageError(f"ChicleRidgeCV needs alphas > 0, one or several, got alphas={self.alphas!r}")
        if self.cv is not None and (self.store_cv_results or self.alpha_per_target):
            raise UsageError(
                "store_cv_results and alpha_per_target are about rows that are left out one at a time; leave cv=None"
            )
        search = 'ChicleSearchCV(ChicleRidge(), {"alpha": alphas})'
        if is_folder(X):
            raise UsageError(f"ChicleRidgeCV needs X and y in memory; search in a ChunkFolder with {search}")
        samples = Samples.of(self, X, y, sample_weight)
        if not samples.are_products_small():
            raise UsageError(
                f"ChicleRidgeCV: products of all {min(samples.X.shape)} columns, or rows, are more than X has values; "
                f"use {search}"
            )
        is_flat, has_own = samples.Y.shape[1] == 1, self.alpha_per_target and samples.Y.shape[1] > 1
        products = Products(samples, has_intercept=self.fit_intercept)
        products.require_finite(self, samples)
        self.__dict__.pop("cv_results_", None)
        if self.cv is None:
            scores = self._scores_left_out(samples, products, alphas)
        else:
            scores = self._scores_of_folds(samples, products, alphas)
        best = scores.argmax(axis=0)
        scores = scores.max(axis=0)
        self.alpha_, self.best_score_ = (alphas[best], scores) if has_own else (float(alphas[best]), float(scores))
        chosen = np.broadcast_to(self.alpha_, samples.Y.shape[1])
        attributes = fit_at_once(self, samples, products, chosen, alone=ChicleRidge)
        for name, value in (of_one_target(attributes) if is_flat else attributes).items():
            setattr(self, name, value)
        if self.store_cv_results and np.ndim(y) == 1:
            self.cv_results_ = self.cv_results_[:, 0]
        set_attributes_like(self, X)
        return self

    def _scores_left_out(self, samples: "Samples", products: "Products", alphas: Array) -> Array:
        """Score each penalty by predictions of rows that were left out; shape (n_alphas,) or (n_alphas, n_targets)."""
        has_own = self.alpha_per_target and samples.Y.shape[1] > 1
        scorer = None if self.scoring is None else check_scoring(self, self.scoring)
        scores = []
        if self.store_cv_results:
            self.cv_results_ = np.empty((*samples.Y.shape, len(alphas)))
        for i, errors in enumerate(products.errors_of_each_left_out(alphas)):
            if scorer is None:
                found = errors**2
                scores.append(-found.mean(axis=0 if has_own else None))
            else:
                roots = np.where(products.roots > 0, products.roots, np.inf)[:, None]
                found = samples.Y - errors / roots
                pairs = (
                    zip(found.T, samples.Y.T, strict=True) if has_own else [(found.reshape(samples.y.shape), samples.y)]
                )
                each = [scorer(_Foretold(), predicted, y, **samples.score_weights) for predicted, y in pairs]
                scores.append(np.array(each) if has_own else each[0])
            if self.store_cv_results:
                self.cv_results_[:, :, i] = found
        return np.array(scores)

    def _scores_of_folds(self, samples: "Samples", products: "Products", alphas: Array) -> Array:
        """Score each penalty by predictions of folds that were left out; shape (n_alphas,)."""
        scorer, is_r2 = check_scoring(self, self.scoring), self.scoring in (None, "r2")
        scores = []
        for train, test in check_cv(self.cv).split(samples.X, samples.y):
            others = samples.take(test)

            def score(found: Array, others: "Samples" = others) -> float:
                predicted = found.reshape(others.y.shape)
                return float(scorer(_Foretold(), predicted, others.y, **others.score_weights))

            scores.append(products.of_fold(samples, train).scores(others, alphas, score, is_r2=is_r2))
        return np.array(np.mean(scores, axis=0))


class _Foretold(RegressorMixin, BaseEstimator):
    """Predicts what it is given: scorers want an estimator."""

    def predict(self, X: Array) -> Array:
        """Return the predictions."""
        return X


@parameters
class ChicleRidgeClassifier(LinearPredictionMixin, SaveMixin, ClassifierMixin, LinearParams):
    """Classifier by ridge regression on targets -1 and 1, with a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.RidgeClassifier`, and finds the same model. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleRidgeClassifier                               RidgeClassifier
    ======================  ==================================================  ============================
    ``alpha``               a number > 0                                        >= 0
    labels                  one per sample                                      one, or several
    ``tol``                 relative duality gap (P - D) / P, 1e-6              measure of the solver, 1e-4
    method                  that of :class:`ChicleRidge`, with a target for     ``solver``, ``positive``
                            each class, or one for two classes
    dtype                   attributes are float64                              ``coef_`` has the dtype of X
    only in one             ``chunk_size``, ``runtime``, ``n_workers``,         ``copy_X``
                            ``policy``, ``save``, ``load``, ``to_sklearn``
    ======================  ==================================================  ============================

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the squared length of `coef_`, > 0. Larger values regularise more.
    class_weight : dict or "balanced", default=None
        Factor of the loss per class; "balanced" gives all classes the same sum of weights.
    tol : float, default=1e-6
        Relative duality gap at which the fit stops, as in :class:`ChicleRidge`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features), float64
        Weights of the features.
    intercept_ : ndarray of shape (1,) or (n_classes,), float64
        Intercepts.
    objective_, dual_objective_ : ndarray of shape (1,) or (n_classes,), float64
        Primal objectives P and dual objectives D <= P.
    n_iter_ : int
        Iterations; on several tasks there is a job for each class, and this is the most.
    duality_gap_ : float
        Largest (P - D) / P of the classes.

    See Also
    --------
    ChicleLogisticRegression : It has probabilities, and takes chunk folders.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from estimators import ChicleRidgeClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ChicleRidgeClassifier().fit(X, y)
    >>> bool(model.duality_gap_ <= 1e-6), round(model.score(X, y), 2)
    (True, 0.85)
    """

    _twin = "sklearn.linear_model.RidgeClassifier"

    alpha: Above0 = field(default=1.0, kw_only=False)
    class_weight: ClassWeight = None
    tol: AtLeast0 = 1e-6

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of the loss per sample, >= 0.

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
        """
        from estimators.checks import validated_samples, validated_weights
        from estimators.inputs import encode_labels
        from estimators.training.weights import require_two_classes

        if is_folder(X):
            raise UsageError(
                "ChicleRidgeClassifier needs X and y in memory; fit ChicleLogisticRegression to a ChunkFolder"
            )
        given = X
        X, y = validated_samples(self, X, y)
        check_classification_targets(y)
        self.classes_, codes, counts = encode_labels(y)
        require_two_classes(type(self).__name__, self.classes_, counts, None)
        weights = sample_weight
        if sample_weight is not None or self.class_weight is not None:
            weights = validated_weights(sample_weight, X)
            weights = weights * compute_sample_weight(self.class_weight, y)
        num_classes = len(self.classes_)
        is_class = codes[:, None] == (np.arange(num_classes) if num_classes > 2 else np.ones(1))
        params = {name: value for name, value in self.get_params(deep=False).items() if name != "class_weight"}
        model = ChicleRidge(**params).fit(X, np.where(is_class, 1.0, -1.0).squeeze(), weights)
        self.coef_ = np.atleast_2d(model.coef_)
        for name in ("intercept_", "objective_", "dual_objective_"):
            setattr(self, name, np.atleast_1d(getattr(model, name)))
        for name in ("n_iter_", "duality_gap_", "history_", "ledger_"):
            setattr(self, name, getattr(model, name))
        set_attributes_like(self, given)
        return self

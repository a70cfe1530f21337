"""The search over a grid of parameters in which all fits share one copy of the data."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from joblib import parallel_config
from sklearn import get_config
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.utils import column_or_1d, get_tags
from sklearn.utils._param_validation import Interval

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from estimators.containers import as_numpy
from estimators.search.backend import ChicleBackend
from estimators.streaming import is_folder

LOOSER = 10.0
"""Factor of `tol` from one rung to the one before it."""
LOOSEST = 0.1
"""`tol` of a rung at most, where that of the estimator is not larger."""


class ChicleSearchCV(GridSearchCV):
    """Exhaustive search over a grid of parameters, in which all fits share one copy of the data.

    It is used like :class:`sklearn.model_selection.GridSearchCV`, and finds the same scores but for `tol`. Fits of
    `ChicleSVM`, `ChicleLogisticRegression`, `ChicleRidge`, `ChicleLasso`, `ChicleElasticNet` and `ChicleSVR` share:

    * **the rows**: a fold is a set of rows that count, and no fit copies the others;
    * **the path**: with the same fold and all other parameters equal, a larger `C` goes on from the model, the duals
      and the second derivatives of a smaller one;
    * **the processes**: in this process folds are fitted on threads; with `n_workers` or a `runtime` of the estimator a
      search over classifiers is one job, whose nodes keep their chunks and come and go as in any job.

    Parameters that cannot share (all but `C`) begin afresh, on the same rows. Classifiers with an l1 penalty and any
    other estimator, a pipeline say, are fitted as `GridSearchCV` does it, on threads; `sharing_` says so. Every
    difference to `GridSearchCV`:

    ======================  ==================================================  ============================
    what                    ChicleSearchCV                                      GridSearchCV
    ======================  ==================================================  ============================
    ``n_jobs``              folds that are fitted at the same time, on threads  processes; None means one
                            of this process; None means as many as cores. A
                            softmax of many values takes them for one fold
                            after the other, for there is a state of each
    ``factor``              stops candidates that are behind                    another class,
                                                                                `HalvingGridSearchCV`
    ``pre_dispatch``        none: all fits are known before the first           how many are sent ahead
    ``X``                   rows in memory; no ChunkFolder                      the same
    fit times               of the fit on its path, so shorter where it went    of fits that begin afresh
                            on from another
    estimator's parameters  with ``warm_start``, ``store_duals``, ``logdir``    no such parameters
                            or callbacks fits share nothing; ``verbose`` is
                            without effect where they do
    ======================  ==================================================  ============================

    Within ``joblib.parallel_config("chicle")`` the fits of scikit-learn's own `GridSearchCV`, `RandomizedSearchCV`,
    `cross_validate` and others share the same way.

    Parameters
    ----------
    estimator : estimator object
        With `fit` and `score`, or `scoring` is given.
    param_grid : dict or list of dicts
        Names of parameters, and lists of the values to try; of several dicts, each is a grid.
    scoring : str, callable, list, tuple or dict, default=None
        As in `GridSearchCV`; None is the estimator's `score`.
    n_jobs : int, default=None
        See above. Where threads would be idle, the path of a fold along `C` is cut, and both parts are fitted at the
        same time; what is left over are threads of kernels (`n_threads` of the estimator).
    refit : bool, str or callable, default=True
        Fit the best candidate on all rows, as in `GridSearchCV`.
    cv : int, cross-validation generator or iterable, default=None
        As in `GridSearchCV`; None means five folds.
    verbose : int, default=0
        As in `GridSearchCV`.
    factor : float, default=None
        Successive halving, > 1: all candidates are fitted to a loose `tol` first, the best ``1 / factor`` of them go
        on, and each such rung has a `tol` a tenth of that before it; the last one has that of the estimator. As the
        duality gap bounds what a fit can still change, a candidate that is far behind at a loose gap stays behind.
        None fits all candidates to the end. 3 is a good value where there are many.
    error_score : "raise" or numeric, default=np.nan
        Score of a fit that fails, as in `GridSearchCV`.
    return_train_score : bool, default=False
        Whether `cv_results_` has scores of the rows that were fitted.

    Attributes
    ----------
    cv_results_ : dict of ndarrays
        As that of `GridSearchCV`. With `factor` there is a row per candidate and rung, and columns `iter` and
        `param_tol`.
    best_estimator_ : estimator
        Fitted on all rows; not with ``refit=False``.
    best_score_ : float
        Mean score of the best candidate over the folds.
    best_params_ : dict
        Its parameters.
    best_index_ : int
        Its row in `cv_results_`; with `factor` one of the last rung.
    scorer_ : callable or dict
        The scorers.
    n_splits_ : int
        Folds.
    refit_time_ : float
        Seconds of the last fit.
    multimetric_ : bool
        Whether there are several scores.
    classes_ : ndarray of shape (n_classes,)
        Labels, of a classifier.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X had some.
    sharing_ : tuple of str
        A line per group of fits: how many they were, and what they shared, or why nothing.

    See Also
    --------
    sklearn.model_selection.GridSearchCV : For any estimator, on processes.
    ChicleSVM : What it is made for.

    References
    ----------
    Chu et al. 2015, "Warm start for parameter selection of linear classifiers". Jamieson and Talwalkar 2016,
    "Non-stochastic best arm identification and hyperparameter optimization".

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from estimators import ChicleSearchCV, ChicleSVM
    >>> X, y = load_digits(return_X_y=True)
    >>> search = ChicleSearchCV(ChicleSVM(random_state=0), {"C": np.logspace(-5, 0, 6)}, cv=3).fit(X / 16, y)
    >>> float(search.best_params_["C"]), search.cv_results_["mean_test_score"].shape
    (0.1, (6,))
    """

    pre_dispatch = "all"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{name: each for name, each in GridSearchCV._parameter_constraints.items() if name != "pre_dispatch"},
        "factor": [Interval(Real, 1.0, None, closed="neither"), None],
    }

    def __init__(
        self,
        estimator: Any,
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., int] = True,
        cv: Any = None,
        verbose: int = 0,
        factor: float | None = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.scoring = scoring
        self.n_jobs = n_jobs
        self.refit = refit
        self.cv = cv
        self.verbose = verbose
        self.factor = factor
        self.error_score = error_score
        self.return_train_score = return_train_score

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit and score all candidates, and fit the best one on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels or targets.
        **params : dict
            `sample_weight`, `groups` and what else `GridSearchCV.fit` takes; with metadata routing it is routed as
            there.

        Returns
        -------
        self : object
            The fitted search.

        Raises
        ------
        UsageError
            X is a ChunkFolder; or `factor` is given and the estimator has no `tol` above 0, or the grid has one.
        ValueError
            A parameter does not exist, the grid is empty, or all fits fail.
        KeyboardInterrupt
            Ctrl-C; every job of the search has ended.
        """
        if is_folder(X):
            raise UsageError(
                f"{type(self).__name__} splits rows that are in memory, and X is the chunk folder {X.path}; pass "
                "arrays or a sparse matrix, or convert a folder per fold and fit the candidates on these"
            )
        if not get_config()["array_api_dispatch"]:  # what has rows and cannot be split
            X = as_numpy(f"{type(self).__name__}: X", X)
        if tuple(getattr(y, "shape", ()))[1:] == (1,) and not get_tags(self.estimator).target_tags.multi_output:
            y = column_or_1d(y, warn=True)  # so that its fits share the rows, as those of such a y do
        backend = ChicleBackend()
        with parallel_config(backend=backend):
            super().fit(X, y, **params)
        self.sharing_ = backend.report
        return self

    def _run_search(self, evaluate_candidates: Callable[..., Any], *, callback_ctx: Any = None) -> None:
        if self.factor is not None:
            self._halve(evaluate_candidates, float(self.factor))
        elif "callback_ctx" in inspect.signature(super()._run_search).parameters:
            super()._run_search(evaluate_candidates, callback_ctx=callback_ctx)
        else:  # before scikit-learn 1.9
            super()._run_search(evaluate_candidates)

    def _halve(self, evaluate_candidates: Callable[..., Any], factor: float) -> None:
        """Evaluate rung by rung."""
        candidates = list(ParameterGrid(self.param_grid))
        if any("tol" in candidate for candidate in candidates):
            raise UsageError(
                "with factor each rung has a tol of its own, and param_grid has some; leave one of them out"
            )
        tol = getattr(self.estimator, "tol", None)
        if not tol:
            raise UsageError(
                f"factor={factor:g} fits to looser values of tol first, and {type(self.estimator).__name__} has "
                f"tol={tol!r}; pass an estimator with a tol above 0, or factor=None"
            )
        for number, rung_tol in enumerate(rungs(len(candidates), factor, float(tol))):
            results = evaluate_candidates(
                [{**candidate, "tol": rung_tol} for candidate in candidates],
                more_results={"iter": [number] * len(candidates)},
            )
            candidates = self._best_of(results, candidates, math.ceil(len(candidates) / factor))

    def _best_of(self, results: Mapping[str, Array], candidates: list[dict[str, Any]], count: int) -> list[Any]:
        """The best candidates of the last rung, in the order of the grid."""
        metric = self.refit if isinstance(self.refit, str) and f"mean_test_{self.refit}" in results else "score"
        if f"mean_test_{metric}" not in results:
            raise UsageError("with several scores factor needs to know which one is meant; name it by refit")
        scores = results[f"mean_test_{metric}"][-len(candidates) :]
        order = np.argsort(np.where(np.isnan(scores), np.inf, -scores), kind="stable")
        return [candidates[place] for place in np.sort(order[:count])]

    @staticmethod
    def _select_best_index(refit: Any, refit_metric: str, results: Mapping[str, Array]) -> int:
        """The best of all candidates, or of the last rung."""
        if callable(refit) or "iter" not in results:
            return int(GridSearchCV._select_best_index(refit, refit_metric, results))
        scores = np.where(np.isnan(results[f"mean_test_{refit_metric}"]), -np.inf, results[f"mean_test_{refit_metric}"])
        last = np.asarray(results["iter"]) == max(results["iter"])
        return int(np.argmax(np.where(last, scores, -np.inf)))


def rungs(num_candidates: int, factor: float, tol: float) -> list[float]:
    """`tol` of each rung of successive halving.

    Args:
        num_candidates: Of the first one.
        factor: So many times fewer go on.
        tol: Of the last one.
    """
    count = 1
    while num_candidates > 1:
        num_candidates = math.ceil(num_candidates / factor)
        count += 1
        if num_candidates <= factor:
            break
    loosest = max(tol, LOOSEST)
    return [min(loosest, tol * LOOSER**number) for number in reversed(range(count))]

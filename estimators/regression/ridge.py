"""Ridge regression."""

import warnings
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, Options

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError
from estimators.regression.common import RegressionMixin
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from chicle_elastic.solvers.linear.ridge.trainer import RidgeTrainer
    from estimators.regression.common import RegressionSet


class ChicleRidge(RegressionMixin, RegressorMixin, CallbackSupportMixin, BaseEstimator):
    """Linear least squares with l2 penalty and a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.Ridge`, and minimises the same function,
    ``sum(weight * (y - X @ coef - intercept)**2) + alpha * |coef|**2``. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleRidge                                         Ridge
    ======================  ==================================================  ============================
    ``alpha``               a number > 0                                        >= 0, or one per target
    targets                 one; several with                                   one or more
                            :class:`sklearn.multioutput.MultiOutputRegressor`
    ``tol``                 relative duality gap (P - D) / P, certified before  measure of the solver, 1e-4
                            the fit stops; 1e-6
    ``max_iter``            iterations, each of one pass over the data; 1000    iterations of the solver
    method                  one Newton step where second derivatives of all     ``solver``, ``positive``
                            columns fit into a message, else conjugate
                            gradients
    ``random_state``        decides which rows share a chunk                    for some solvers
    dtype                   float32 and float64 input is used as it is; sums    ``coef_`` has the dtype of X
                            and attributes are float64
    only in one             ``verbose``, ``chunk_size``, ``runtime``,           ``copy_X``, other array
                            ``n_workers``, ``policy``, ``logdir``,              libraries than NumPy
                            ``fit(ChunkFolder(path))``, ``save``, ``load``
    ======================  ==================================================  ============================

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the squared length of `coef_`, > 0. Larger values regularise more.
    fit_intercept : bool, default=True
        Whether there is an intercept; it is not penalised.
    tol : float, default=1e-6
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    max_iter : int, default=1000
        Most iterations, each of one pass over the data.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffle of rows for several tasks.
    verbose : int, default=0
        1 shows a bar on a terminal, and elsewhere prints the method and a line per certificate; 2 prints the method and
        a line per iteration.
    chunk_size : int, default=None
        Bytes of a chunk; None chooses. It matters for several tasks only.
    runtime : Runtime, default=None
        Where the job runs; None means `chicle_elastic.InProcess(num_tasks=1)`. With a `chicle_elastic.LocalCluster`
        nodes are processes that come and go while it runs.
    n_workers : int or tuple of (int, int), default=None
        Short for ``runtime=LocalCluster(n_workers)``, with one cluster for all fits of this process; needs
        ``pip install 'chicle-elastic[cluster]'``. With (2, 4) the fit goes on while there are at least 2
        nodes; -1 means as many nodes as there are cores.
    policy : Policy or tuple of them, default=None
        Moves chunks while the fit runs, e.g. `chicle_elastic.Rebalance()`. None leaves it to the runtime.
    logdir : str or path-like, default=None
        Folder for TensorBoard, in which each fit has a folder of its own; needs ``pip install
        'chicle-elastic[tensorboard]'``.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), float64
        Weights of the features.
    intercept_ : float
        Intercept.
    n_iter_ : int
        Iterations.
    duality_gap_ : float
        (P - D) / P, evaluated in float64 at the returned model.
    objective_ : float
        Primal objective P, the function above.
    dual_objective_ : float
        Dual objective D <= P.
    history_ : chicle_elastic.monitoring.history.History
        A record per iteration; ``pandas.DataFrame(history_.to_dict())``. `history_.method` says how the model was
        found, and why so.
    ledger_ : chicle_elastic.monitoring.job_ledger.JobLedger
        What became of each chunk: rows, owner, iterations by node, replays.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if X had some.

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0.0, None, closed="neither")],
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

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 1000,
        random_state: Any = None,
        verbose: int = 0,
        chunk_size: int | None = None,
        runtime: "Runtime | None" = None,
        n_workers: int | tuple[int, int] | None = None,
        policy: "Policy | tuple[Policy, ...] | None" = None,
        logdir: str | PathLike[str] | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose
        self.chunk_size = chunk_size
        self.runtime = runtime
        self.n_workers = n_workers
        self.policy = policy
        self.logdir = logdir

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples. float32 and float64 are used as they are, without a copy where they are C-contiguous or CSR. A
            `chicle_elastic.chunks.folder.ChunkFolder` brings its targets and weights along.
        y : array-like of shape (n_samples,)
            Real targets; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of the squared residual per sample, >= 0; none for a ChunkFolder.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        DataError
            A value of X is NaN or infinite; the message names its column and row.
        ValueError
            X, y or a parameter cannot be used.
        KeyboardInterrupt
            Ctrl-C; the attributes are set and belong together, as after `max_iter` iterations.

        Warns
        -----
        ConvergenceWarning
            The duality gap is above `tol` after `max_iter` iterations.
        RuntimeWarning
            A policy is disabled, because it raised, decided nonsense or did not answer.
        """
        from chicle_elastic.solvers.linear.ridge.trainer import RidgeTrainer
        from estimators.place import runtime_of
        from estimators.regression.common import regression_set
        from estimators.run import run_job

        runtime = runtime_of(self)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        training = regression_set(self, X, y, sample_weight, max_tasks=runtime.most_tasks(), seed=seed)
        if hasattr(runtime, "submit"):  # no objects of this process go there
            from estimators.submitted.fit import fit_elsewhere

            fit_elsewhere(self, runtime, X if training.features is None else training.features, y, sample_weight)
            return self
        trainer = RidgeTrainer(alpha=float(self.alpha), tol=float(self.tol), has_intercept=bool(self.fit_intercept))
        try:
            outcome = run_job(self, runtime, trainer, training, seed)
        except DataError:
            training.require_finite(self)  # says it with names of columns
            raise
        self._set_attributes(trainer, training, outcome)
        if outcome.is_interrupted:
            raise KeyboardInterrupt
        if self.n_iter_ >= self.max_iter and not self.duality_gap_ <= self.tol:
            warnings.warn(
                f"{type(self).__name__} has not converged: after max_iter={self.max_iter} iterations the relative "
                f"duality gap is {self.duality_gap_:.1e}, above tol={self.tol:g}. To converge: scale the features "
                "(StandardScaler), raise alpha, or raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of fit, behind the decorator
            )
        return self

    def _predicting_attributes(
        self, trainer: "RidgeTrainer", training: "RegressionSet", model: Array, num_iterations: int
    ) -> dict[str, Any]:
        """What an estimator needs to predict with a model."""
        return {"coef_": model[:-1].copy(), "intercept_": float(model[-1]), "n_iter_": num_iterations}

    def _set_attributes(self, trainer: "RidgeTrainer", training: "RegressionSet", outcome: "Outcome") -> None:
        from functools import partial

        from estimators.watch import methods_of

        attributes = self._predicting_attributes(trainer, training, outcome.model, len(outcome.history))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.history_, self.ledger_ = outcome.history, outcome.ledger
        self.history_.methods = methods_of(outcome.history, partial(trainer.method, training.source.schema))
        if outcome.certificate is None:  # samples were lost and not yet restored: nothing can be certified
            self.objective_ = self.dual_objective_ = self.duality_gap_ = float("nan")
            return
        self.objective_, self.dual_objective_ = trainer.primal_and_dual(outcome.model, outcome.certificate)
        self.duality_gap_ = trainer.relative_gap(outcome.model, outcome.certificate)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

"""Ridge regression."""

from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.utils._param_validation import Interval

from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.regression.trainer import RegressionTrainer


class ChicleRidge(LinearRegressor):
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
    dtype                   floats and bytes stay as they are; sums             ``coef_`` has the dtype of X
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
        **LinearRegressor._parameter_constraints,
        "alpha": [Interval(Real, 0.0, None, closed="neither")],
    }

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

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.regression.losses import SquaredEpsilonInsensitive
        from chicle_elastic.solvers.linear.regression.trainer import RegressionTrainer

        return RegressionTrainer(
            loss=SquaredEpsilonInsensitive(0.0),
            alpha=2.0 * float(self.alpha),
            tol=float(self.tol),
            intercept_scaling=1.0 if self.fit_intercept else 0.0,
            penalises_intercept=False,
        )

    def _advice(self) -> str:
        return "raise alpha"

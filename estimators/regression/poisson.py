"""Poisson regression."""

from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.metrics import d2_tweedie_score
from sklearn.utils._param_validation import Interval

from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer


class ChiclePoisson(LinearRegressor):
    """Poisson regression with a certified duality gap, on one machine or many: of counts and rates.

    It is used like :class:`sklearn.linear_model.PoissonRegressor` and minimises the same function: with means
    mu = exp(X @ w + b) and the mean by weight ::

        mean(mu - y * log(mu) - y + y * log(y)) + alpha / 2 * |w|^2

    which is half the Poisson deviance. Every difference:

    ======================  ==================================================  ============================
    what                    ChiclePoisson                                       PoissonRegressor
    ======================  ==================================================  ============================
    ``alpha``               above 0: without a penalty nothing is certified     0 and more
    ``tol``                 relative duality gap (P - D) / P, certified before  measure of the solver, 1e-4
                            the fit stops; 1e-3
    ``max_iter``            iterations, each of at least one pass; 1000         iterations of the solver; 100
    method                  Newton's method on sums over all tasks              ``solver``
    ``warm_start``          none                                                keeps `coef_`
    dtype                   floats and bytes stay as they are; sums             ``coef_`` has the dtype of X
                            and attributes are float64
    ======================  ==================================================  ============================

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the penalty, > 0.
    tol : float, default=1e-3
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    fit_intercept : bool, default=True
        Whether there is an intercept, which is not penalised.
    max_iter : int, default=1000
        Most iterations, each of one pass over the data, or of several with little data and one task.
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
    sklearn.linear_model.PoissonRegressor : On one machine; with ``alpha=0``, too.

    References
    ----------
    McCullagh and Nelder 1989, "Generalized Linear Models".

    Examples
    --------
    >>> from estimators import ChiclePoisson
    >>> X, y = [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 3.0]], [12.0, 17.0, 22.0, 21.0]
    >>> model = ChiclePoisson().fit(X, y)
    >>> round(model.score(X, y), 2)
    0.99
    """

    _twin = "sklearn.linear_model.PoissonRegressor"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearRegressor._parameter_constraints,
        "alpha": [Interval(Real, 0.0, None, closed="neither")],
    }

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        tol: float = 1e-3,
        fit_intercept: bool = True,
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
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose
        self.chunk_size = chunk_size
        self.runtime = runtime
        self.n_workers = n_workers
        self.policy = policy
        self.logdir = logdir

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
        from chicle_elastic.solvers.linear.regression.losses import Poisson

        return RegressionTrainer(
            loss=Poisson(),
            alpha=float(self.alpha),
            is_mean=True,
            tol=float(self.tol),
            intercept_scaling=self._intercept_factor(),
            penalises_intercept=False,
        )

    def _targets_of(self, scores: "Array") -> "Array":
        return np.exp(scores)

    def _score_of(self, y: "Array", predicted: "Array", sample_weight: Any) -> float:
        return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=1))

    def _advice(self) -> str:
        return "raise alpha"

    def _intercept_factor(self) -> float:
        return 1.0 if self.fit_intercept else 0.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

"""Support vector regression."""

from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sklearn.utils._param_validation import Interval, StrOptions

from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer


class ChicleSVR(LinearRegressor):
    """Linear support vector regression with a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.svm.LinearSVR`, and minimises the same function: the intercept is one more feature
    of constant value `intercept_scaling`, penalised like the rest. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleSVR                                           LinearSVR
    ======================  ==================================================  ============================
    more than 2047          conjugate gradients, which may take hundreds of      coordinate descent
    features                iterations for ``loss="epsilon_insensitive"``
    ``tol``                 relative duality gap (P - D) / P, certified before  measure of the solver, 1e-4
                            the fit stops; 1e-3
    ``max_iter``            iterations, each of at least one pass; 1000         iterations of the solver
    method                  Newton's method on sums over all tasks              ``dual``
    ``random_state``        decides which rows share a chunk                    decides the order of samples
    dtype                   floats and bytes stay as they are; sums             float64
                            and attributes are float64
    ``intercept_``          float                                               ndarray
    only in one             ``chunk_size``, ``runtime``, ``n_workers``,
                            ``policy``, ``logdir``, ``save``, ``load``,
                            ``fit(ChunkFolder(path))``, ``to_sklearn``
    ======================  ==================================================  ============================

    Parameters
    ----------
    epsilon : float, default=0.0
        Residuals up to this cost nothing, >= 0; in units of the target.
    tol : float, default=1e-3
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    C : float, default=1.0
        Factor of the sum of losses, > 0. Smaller values regularise more and converge faster.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"
        Loss of a residual r: ``max(0, abs(r) - epsilon)``, or the square of that.
    fit_intercept : bool, default=True
        Whether there is an intercept.
    intercept_scaling : float, default=1.0
        Value of the constant feature; the larger, the less the intercept is penalised.
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
        Primal objective P: ``0.5 * |w|^2 + C * sum(weight * loss)``, w with the intercept's weight.
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
    ChicleRidge : The same with the square of all residuals, and an intercept without penalty.
    sklearn.svm.LinearSVR : On wide data, and on small data with a small C, it is faster.

    Notes
    -----
    The corner of the loss is rounded off, less and less; slopes of the round loss are feasible duals of the sharp one.
    The page on linear models has more of the method.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from estimators import ChicleSVR
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChicleSVR(C=100.0, epsilon=5.0, intercept_scaling=100.0).fit(X, y)
    >>> bool(model.duality_gap_ <= 1e-3), round(model.score(X, y), 2)
    (True, 0.48)
    """

    _twin = "sklearn.svm.LinearSVR"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearRegressor._parameter_constraints,
        "epsilon": [Interval(Real, 0.0, None, closed="left")],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "loss": [StrOptions({"epsilon_insensitive", "squared_epsilon_insensitive"})],
        "intercept_scaling": [Interval(Real, 0.0, None, closed="neither")],
    }

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        tol: float = 1e-3,
        C: float = 1.0,
        loss: Literal["epsilon_insensitive", "squared_epsilon_insensitive"] = "epsilon_insensitive",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        max_iter: int = 1000,
        random_state: Any = None,
        verbose: int = 0,
        chunk_size: int | None = None,
        runtime: "Runtime | None" = None,
        n_workers: int | tuple[int, int] | None = None,
        policy: "Policy | tuple[Policy, ...] | None" = None,
        logdir: str | PathLike[str] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.tol = tol
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
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
        from chicle_elastic.solvers.linear.regression.losses import EpsilonInsensitive, SquaredEpsilonInsensitive

        kind = EpsilonInsensitive if self.loss == "epsilon_insensitive" else SquaredEpsilonInsensitive
        return RegressionTrainer(
            loss=kind(float(self.epsilon)),
            C=float(self.C),
            tol=float(self.tol),
            intercept_scaling=self._intercept_factor(),
        )

    def _advice(self) -> str:
        return "lower C"

    def _intercept_factor(self) -> float:
        return float(self.intercept_scaling) if self.fit_intercept else 0.0

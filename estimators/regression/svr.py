"""Support vector regression."""

from typing import TYPE_CHECKING, Literal

from estimators.params import Above0, AtLeast0, parameters
from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer


@parameters
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
    C : float, default=1.0
        Factor of the sum of losses, > 0. Smaller values regularise more and converge faster.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"
        Loss of a residual r: ``max(0, abs(r) - epsilon)``, or the square of that.
    fit_intercept : bool, default=True
        Whether there is an intercept.
    intercept_scaling : float, default=1.0
        Value of the constant feature; the larger, the less the intercept is penalised.

    Attributes
    ----------
    objective_ : float
        Primal objective P: ``0.5 * |w|^2 + C * sum(weight * loss)``, w with the intercept's weight.

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

    epsilon: AtLeast0 = 0.0
    C: Above0 = 1.0
    loss: Literal["epsilon_insensitive", "squared_epsilon_insensitive"] = "epsilon_insensitive"
    intercept_scaling: Above0 = 1.0

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.losses import EpsilonInsensitive, SquaredEpsilonInsensitive
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer

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

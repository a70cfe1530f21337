"""Poisson regression."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import d2_tweedie_score

from estimators.params import Above0, parameters
from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer


@parameters
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

    alpha: Above0 = 1.0

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.losses import Poisson
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer

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

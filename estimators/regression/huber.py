"""Robust regression with Huber's loss."""

from dataclasses import field
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from sklearn.utils._param_validation import Interval

from estimators.params import Above0, parameters
from estimators.regression.base import LinearRegressor

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.runtime.training.job import Outcome
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
    from estimators.regression.common import RegressionSet


@parameters
class ChicleHuber(LinearRegressor):
    """Robust regression with a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.HuberRegressor` and minimises the same function, over the weights w,
    the intercept b and the scale sigma > 0 of the residuals r = y - X @ w - b::

        sum(weight * (sigma + sigma * h(r / sigma))) + alpha * |w|^2,
            h(t) = t^2 where |t| < epsilon, else 2 * epsilon * |t| - epsilon^2

    The scale is found with the weights, so `epsilon` means the same whatever the units of y. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleHuber                                         HuberRegressor
    ======================  ==================================================  ============================
    ``alpha``               above 0: without a penalty nothing is certified     0 and more
    ``tol``                 relative duality gap (P - D) / P, certified before  measure of the solver, 1e-5
                            the fit stops; 1e-3
    ``max_iter``            iterations, each of at least one pass; 1000         iterations of the solver; 100
    method                  Newton's method on sums over all tasks              L-BFGS
    sparse X                stays sparse                                        stays sparse
    ``warm_start``          none                                                keeps `coef_` and `scale_`
    dtype                   floats and bytes stay as they are; sums             float64
                            and attributes are float64
    ======================  ==================================================  ============================

    Parameters
    ----------
    epsilon : float, default=1.35
        Residuals beyond so many scales count linearly, >= 1; the smaller, the less outliers matter.
    alpha : float, default=0.0001
        Factor of the penalty, > 0.

    Attributes
    ----------
    scale_ : float
        sigma, in units of the target.
    outliers_ : ndarray of shape (n_samples,), bool
        Samples whose residual is beyond ``epsilon * scale_``. Of a ChunkFolder in the order of the data that it was
        made from.

    See Also
    --------
    ChicleRidge : The square of all residuals.
    ChicleSVR : Their amount, above some epsilon.

    Notes
    -----
    Where all rows are fitted exactly the scale goes to 0, and rounding of the residuals beside it may keep the gap
    above a `tol` of 1e-9 or less: then the fit ends with a warning, however good the model is.

    References
    ----------
    Huber and Ronchetti 2009, "Robust Statistics", chapter 7.
    Owen 2007, "A robust hybrid of lasso and ridge regression".

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_regression
    >>> from estimators import ChicleHuber
    >>> X, y, coef = make_regression(200, 2, noise=4.0, coef=True, random_state=0)
    >>> y[:4] = 1000.0
    >>> model = ChicleHuber().fit(X, y)
    >>> bool(np.abs(model.coef_ - coef).max() < 1.0), int(model.outliers_[:4].sum())
    (True, 4)
    """

    _twin = "sklearn.linear_model.HuberRegressor"
    _file_values = (*LinearRegressor._file_values, "scale_")

    scale_: float = field(init=False)

    epsilon: Annotated[float, Interval(Real, 1.0, None, closed="left")] = 1.35
    alpha: Above0 = 0.0001

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.losses import Huber
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer

        return RegressionTrainer(
            loss=Huber(float(self.epsilon)),
            alpha=2.0 * float(self.alpha),
            tol=float(self.tol),
            intercept_scaling=self._intercept_factor(),
            penalises_intercept=False,
        )

    def _set_attributes(self, trainer: Any, training: "RegressionSet", outcome: "Outcome") -> None:
        super()._set_attributes(trainer, training, outcome)
        self.scale_ = float("nan") if outcome.certificate is None else trainer.scale(outcome.certificate)
        y, scores = training.targets(), training.by_row(self._foretold)
        self.outliers_: Array = np.abs(y - scores) > self.epsilon * self.scale_

    def _advice(self) -> str:
        return "raise alpha"

    def _intercept_factor(self) -> float:
        return 1.0 if self.fit_intercept else 0.0

"""Lasso and elastic net."""

from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from chicle_elastic.chunks.views import Array
from estimators.params import Above0, AtLeast0, Share, parameters
from estimators.prediction import weights_of
from estimators.regression.base import FEW_VALUES, LinearRegressor
from estimators.regression.more_rows import MoreRowsMixin
from estimators.run import needs_no_job

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
    from estimators.regression.targets import Products, Results, Samples


@parameters
class SparseRegressor(MoreRowsMixin, LinearRegressor):
    """Linear least squares with an l1 penalty.

    Parameters
    ----------
    tol : float, default=1e-6
        Relative duality gap (P - D) / P at which the fit stops: the objective P is then certified to be at most
        ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    warm_start : bool, default=False
        Whether a fit begins with `coef_` of the fit before, if that had as many features; along a path of `alpha` on
        wide data it needs fewer passes.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features), float64
        Weights of the features; most of them may be 0.
    sparse_coef_ : sparse matrix of shape (1, n_features) or (n_targets, n_features), float64
        The same as CSR.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    objective_ : float or ndarray of shape (n_targets,)
        Primal objective P, the function above.
    dual_objective_ : float or ndarray of shape (n_targets,)
        Dual objective D <= P.
    """

    _takes_targets = True

    alpha: Above0 = field(default=1.0, kw_only=False)
    tol: AtLeast0 = 1e-6
    warm_start: bool = False

    @property
    def sparse_coef_(self) -> Any:
        """Return `coef_` as a CSR matrix."""
        return sparse.csr_matrix(np.atleast_2d(weights_of(self)[0]))

    @property
    def penalty(self) -> str:
        """Return the name of the penalty, for which `sklearn.feature_selection.SelectFromModel` asks."""
        return "l1" if self._share() == 1 else "l2" if self._share() == 0 else "elasticnet"

    def _share(self) -> float:
        """Return the share of the l1 penalty."""
        return 1.0

    def _trainer(self) -> "RegressionTrainer":
        from chicle_elastic.solvers.linear.losses import SquaredEpsilonInsensitive
        from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer

        return RegressionTrainer(
            loss=SquaredEpsilonInsensitive(),
            C=0.5,
            alpha=float(self.alpha),
            l1_ratio=self._share(),
            is_mean=True,
            tol=float(self.tol),
            intercept_scaling=float(bool(self.fit_intercept)),
            penalises_intercept=False,
        )

    def _fit_targets(self, runtime: "Runtime", samples: "Samples") -> dict[str, Any]:
        from estimators.regression.elastic_net import fit_at_once

        if not (needs_no_job(self) and self._is_little(samples.X.shape)):
            return super()._fit_targets(runtime, samples)
        has_targets = samples.Y.shape[1] > 1
        alone = partial(type(self), **self.get_params(deep=False)) if has_targets else None
        return fit_at_once(self, samples, alone=alone, **self._penalties())

    def _penalties(self) -> dict[str, float]:
        l1 = float(self.alpha) * self._share()
        return {"l1": l1, "l2": float(self.alpha) - l1}

    def _results(self, products: "Products", first: Array | None) -> "Results":
        from chicle_elastic.solvers.linear.certified import MOST_REPEATS
        from estimators.regression.elastic_net import results_of

        # Not `MOST_LOOKS`: there are no rows for a job to go on with.
        return results_of(products, tol=float(self.tol), most_rounds=MOST_REPEATS, first=first, **self._penalties())

    def _is_little(self, shape: tuple[int, ...]) -> bool:
        n, d = (*shape, 0, 0)[:2]
        return d <= n and n * d <= FEW_VALUES and not self.warm_start

    def _initial_model(self) -> Array | None:
        found, intercept = weights_of(self)  # which coef_ set by hand may lack
        return np.append(found, intercept) if self.warm_start and np.shape(found) == (self.n_features_in_,) else None

    def _advice(self) -> str:
        return "raise alpha"


@parameters
class ChicleElasticNet(SparseRegressor):
    """Linear least squares with l1 and l2 penalties and a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.ElasticNet`, and minimises the same function, with n the number of
    samples or the sum of their weights::

        sum(weight * (y - X @ coef - intercept)**2) / (2 * n)
            + alpha * l1_ratio * sum(|coef|) + alpha * (1 - l1_ratio) / 2 * sum(coef**2)

    Every difference:

    ======================  ==================================================  ============================
    what                    ChicleElasticNet                                    ElasticNet
    ======================  ==================================================  ============================
    ``alpha``               a number > 0                                        >= 0
    targets                 one or more; of a ChunkFolder one                   one or more
    ``tol``                 relative duality gap (P - D) / P, certified before  gap, relative to the squared
                            the fit stops; 1e-6                                 length of y; 1e-4
    ``max_iter``            iterations, each of one pass over the data; 1000    sweeps over the columns
    method                  sums of products of columns, of all where these     coordinate descent on the
                            fit into a message, else of a working set;          data, or on ``precompute``
                            coordinate descent and exact steps on them
    ``random_state``        decides which rows share a chunk                    for ``selection="random"``
    dtype                   floats and bytes stay as they are, but for little   ``coef_`` has the dtype of X
                            data, which is copied as float64; sums and
                            attributes are float64
    only in one             ``verbose``, ``chunk_size``, ``runtime``,           ``positive``, ``precompute``,
                            ``n_workers``, ``policy``, ``logdir``,              ``copy_X``, ``selection``,
                            ``fit(ChunkFolder(path))``, ``save``, ``load``,     ``path``
                            ``to_sklearn``
    ======================  ==================================================  ============================

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of both penalties, > 0. Larger values regularise more.
    l1_ratio : float, default=0.5
        Share of the l1 penalty, from 0 to 1; with 1 it is the lasso, with 0 ridge regression, for which
        :class:`ChicleRidge` is faster.

    See Also
    --------
    ChicleLasso : The same with the l1 penalty alone.
    sklearn.linear_model.ElasticNet : On small data and one machine it is as good or faster.

    Notes
    -----
    More than 2047 weights that are not 0 are more than a working set takes. They are solved for in turns, which may
    take so many iterations that the fit ends with a warning; a larger `alpha` has fewer of them.

    References
    ----------
    Massias, Gramfort and Salmon 2018, "Celer: a fast solver for the lasso with dual extrapolation". Ndiaye, Fercoq,
    Gramfort and Salmon 2017, "Gap safe screening rules for sparsity enforcing penalties".

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from estimators import ChicleElasticNet
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChicleElasticNet(alpha=0.01, l1_ratio=0.9).fit(X, y)
    >>> bool(model.duality_gap_ <= 1e-6), round(model.score(X, y), 3)
    (True, 0.491)
    """

    _twin = "sklearn.linear_model.ElasticNet"

    l1_ratio: Share = 0.5

    def _share(self) -> float:
        return float(self.l1_ratio)


@parameters
class ChicleLasso(SparseRegressor):
    """Linear least squares with l1 penalty and a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.Lasso`, and minimises the same function, with n the number of samples
    or the sum of their weights: ``sum(weight * (y - X @ coef - intercept)**2) / (2 * n) + alpha * sum(|coef|)``.
    What differs from it is what differs between :class:`ChicleElasticNet` and `ElasticNet`.

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the sum of absolute weights, > 0. Larger values regularise more, and leave fewer weights.

    See Also
    --------
    ChicleElasticNet : The same with an l2 penalty beside it; its notes and references hold here, too.
    sklearn.linear_model.Lasso : On small data and one machine it is as good or faster.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from estimators import ChicleLasso
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChicleLasso(alpha=0.1).fit(X, y)
    >>> bool(model.duality_gap_ <= 1e-6), round(model.score(X, y), 3), model.sparse_coef_.nnz
    (True, 0.509, 7)
    """

    _twin = "sklearn.linear_model.Lasso"

"""More rows later, for regressions that products of columns are enough for."""

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from estimators.containers import set_attributes_like
from estimators.prediction import weights_of

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from estimators.regression.targets import Products, Results


class MoreRowsMixin:
    """`partial_fit`, which keeps the products of the columns of all rows so far, and no row.

    Attributes
    ----------
    n_samples_seen_ : int
        Rows whose products are kept, for `partial_fit`.
    """

    fit_intercept: bool
    tol: float
    duality_gap_: float
    n_samples_seen_: int
    _validate_params: Callable[[], None]

    def _is_little(self, shape: tuple[int, ...]) -> bool:
        """Say whether rows of this shape are worth no more than one thread."""
        raise NotImplementedError

    def _results(self, products: "Products", first: "Array | None") -> "Results":
        """Return the regressions of all targets; `first` are weights to begin with, shape (n_targets, n_features)."""
        raise NotImplementedError

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows to those of the calls before, and fit the model to all of them.

        The model and its certificate are those of a fit to all rows, whatever their order, at the price of the rows
        that are added: what is kept are the products of the columns, `n_features` squared values. `fit` keeps none, so
        the first rows are passed to `partial_fit`, too. Rounding of each call counts as a part of the gap, which is
        smaller after fewer calls with more rows. It runs in this process.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to add.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their targets.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of their losses, >= 0.

        Returns
        -------
        self : object
            The fitted estimator; `n_samples_seen_` counts the rows.

        Raises
        ------
        UsageError
            The model is one of `fit` or `load`, which keep no products; columns are so many that their products are
            larger than the rows; targets are more or fewer than before, or `fit_intercept` has changed.
        DataError, ValueError
            As `fit` does.

        Warns
        -----
        ConvergenceWarning
            Rounding of the products leaves a gap above `tol`, and `fit` would look at residuals.
        """
        from chicle_elastic.runtime.training.blas_threads import one_blas_thread
        from estimators.regression.targets import Products, Samples, finished, of_one_target

        self._validate_params()  # the decorator looks in the first call alone, and they may have changed
        begin, name = time.monotonic(), type(self).__name__
        before: Products | None = getattr(self, "_products", None)
        if before is None and hasattr(self, "coef_"):
            raise UsageError(
                f"{name}: partial_fit goes on with products of columns, and fit and load keep none; begin with "
                "partial_fit of a new estimator, or fit again with all rows"
            )
        samples = Samples.of(self, X, y, sample_weight, reset=before is None)
        d, K = samples.X.shape[1], samples.Y.shape[1]
        if d * d > max(MOST_BLOCK_VALUES, samples.X.size):
            raise UsageError(
                f"{name}: products of all {d} columns, which partial_fit keeps, are more than the rows have values; "
                "keep the rows, and fit again"
            )
        if before is not None and (len(before.squares), np.isfinite(before.total)) != (K, bool(self.fit_intercept)):
            raise UsageError(
                f"{name}: partial_fit began with {len(before.squares)} targets and fit_intercept="
                f"{np.isfinite(before.total)}, and now there are {K} and {self.fit_intercept}; begin anew"
            )
        with one_blas_thread() if self._is_little(samples.X.shape) else nullcontext():
            products = Products(samples, has_intercept=bool(self.fit_intercept), by_columns=True)
            products.require_finite(self, samples)
            first = None if before is None else np.atleast_2d(weights_of(self)[0])
            products = products.alone() if before is None else before.plus(products)
            attributes = finished(self, samples, products, self._results(products, first), None, begin)
        seen = len(samples.Y) + (0 if before is None else self.n_samples_seen_)
        attributes |= {"_products": products, "n_samples_seen_": seen}
        for attribute, value in (attributes if K > 1 else of_one_target(attributes)).items():
            setattr(self, attribute, value)
        if not self.duality_gap_ <= self.tol:
            warnings.warn(
                f"{name}: rounding of the products leaves a relative duality gap of {self.duality_gap_:.1e}, above "
                f"tol={self.tol:g}; scale the features (StandardScaler), raise alpha or tol, or fit all rows at once",
                ConvergenceWarning,
                stacklevel=3,  # the caller, behind the decorator
            )
        set_attributes_like(self, X)
        return self

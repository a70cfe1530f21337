"""Lasso and elastic net of little data from the products of its columns, without a job.

With X and Y as in `targets`, W the sum of weights, H = X'X / W and q = X'y / W, it minimises

    P(w) = |y - X w|^2 / 2W + l1 |w|_1 + l2/2 |w|^2

where |y - X w|^2 / W = |y|^2 / W - q'w - v'w and v = q - H w is what `l1.problem` makes duals of. Nothing of that
reads X again; rounding of the products counts as a part of the gap.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.training.blas_threads import one_blas_thread
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, TINY
from chicle_elastic.solvers.linear.l1.problem import L1Penalty
from chicle_elastic.solvers.linear.l1.subproblem import minimise
from estimators.regression.targets import Products, Results, Samples, finished

MOST_LOOKS = 8
"""Sweeps over all columns after which a job, which has other means, goes on."""


@one_blas_thread()
@np.errstate(over="ignore", invalid="ignore")  # what cannot be summed up has no small gap, and is left to a job
def fit_at_once(
    estimator: Any, samples: Samples, *, l1: float, l2: float, alone: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return the attributes of the regression of all targets. Raises DataError when values are not finite, or squares
    overflow.

    Args:
        estimator: Being fitted.
        samples: The data.
        l1, l2: Factors of the penalties, one of them > 0.
        alone: Makes the regression of a target that has to be fitted by itself; None for no such fits.
    """
    begin = time.monotonic()
    products = Products(samples, has_intercept=bool(estimator.fit_intercept))
    products.require_finite(estimator, samples)
    results = results_of(products, l1=l1, l2=l2, tol=float(estimator.tol), most_rounds=MOST_LOOKS)
    makers: Sequence[Callable[..., Any]] | None = None if alone is None else [alone] * len(results.gaps)
    return finished(estimator, samples, products, results, makers, begin)


@one_blas_thread()
@np.errstate(over="ignore", invalid="ignore")  # what cannot be summed up has no small gap
def results_of(
    products: Products, *, l1: float, l2: float, tol: float, most_rounds: int, first: Array | None = None
) -> Results:
    """Return the regressions of all targets, each from weights on, shape (K, d), or from 0."""
    K, d, total = len(products.squares), len(products.means), products.weight
    results = Results(coef=np.zeros((K, d)), primal=np.zeros(K), dual=np.zeros(K), gaps=np.full(K, np.inf))
    H = products.gram / total
    for k in range(K):
        start = np.zeros(d) if first is None else first[k].copy()
        accuracy = LEAST_SHARE * tol * l1
        w, primal, gap = _solution(products, H, k, start, l1=l1, l2=l2, accuracy=accuracy, most_rounds=most_rounds)
        results.coef[k], results.primal[k], results.dual[k] = w, primal, max(primal - gap, 0.0)
        results.gaps[k] = gap / max(primal, float(products.floor[k]) / total, TINY)
    return results


def _solution(
    products: Products, H: Array, k: int, start: Array, *, l1: float, l2: float, accuracy: float, most_rounds: int
) -> tuple[Array, float, float]:
    """Return w of target k, found from `start` on, P and P - D, what rounding may hide included."""
    total = products.weight
    square, q = float(products.squares[k]) / total, np.ascontiguousarray(products.right[:, k]) / total
    w, _ = minimise(H, q - H @ start, start, l1=l1, l2=l2, enough=0.0, accuracy=accuracy, most_rounds=most_rounds)
    v = q - H @ w
    losses = 0.5 * max(square - float(q @ w) - float(v @ w), 0.0)
    penalty = L1Penalty(l1, l2)
    primal = losses + penalty.value(w)
    _, gap = penalty.scaled(w, primal, np.array([losses]), v[np.newaxis])
    length = float(np.abs(w).sum())
    gap = max(gap, 0.0) + products.rounding * (square + products.size / total * length * length)
    if np.isfinite(products.total):
        gap += (products.rounding * float(np.abs(products.means) @ np.abs(w))) ** 2
    return w, primal, gap

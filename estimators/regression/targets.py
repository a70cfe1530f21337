"""Several targets in one fit, and one of little data: regressions from products of columns, or one after the other.

Shapes: n rows, d columns, K targets; m is the smaller one of n and d. With X rows less their weighted means and times
the roots s of their weights, Y targets alike, and G = X'X (d <= n) or X X', ridge regression solves

    d <= n:  (G + alpha) W = X'Y                      n < d:  (G + alpha) A = Y,  W = X'A

so one factor of G + alpha serves all targets. The gap follows from what is left of these equations, e:

    d <= n:  |e|^2 / alpha,  P = |Y|^2 - <W, X'Y + e>  n < d:  e'Ge / alpha,  P = |e + alpha A|^2 + alpha A'GA

Nothing of that reads X again. Rounding of the products counts as a part of the gap; targets whose gap is then above
`tol` are fitted one after the other, by the regression that looks at their residuals.

In a fold G and X'Y are those of all rows less those of the rows that are left out, where these are the fewer. Its
G = V diag(l) V' serves all penalties: the solutions are V Z, Z_i = (V' right)_i / (l_i + alpha). With T what rows that
are left out make of V, and E their targets, the mean of R^2 over the targets is 1 less the mean of |E_k - T Z_k|^2 /
S_k, S_k the squares of target k less its mean. It needs T'T, T'E and V' right, and then a quadratic form per penalty.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh, svd

from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.blas_threads import one_blas_thread
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from estimators.checks import (
    require_finite,
    require_finite_model,
    require_moderate,
    validated_samples,
    validated_weights,
)
from estimators.prediction import weights_of
from estimators.regression.common import require_weight
from estimators.run import Accounts

EPS = float(np.finfo(np.float64).eps)
LEAST_RESIDUAL = 1e-10
"""Share of the targets below which residuals are rounding, as in `newton.steps`."""
LEAST_LEFT = 1e-2
"""Share of a diagonal value of all rows above which a fold has it as a difference: fourteen digits are left then."""
SPECTRUM = 16
"""Factors that take as long as a spectrum: 8 to 19 of 200 to 1000 columns, on one core. With 4 and 64 a search of 10
penalties over 500 columns begins to have a spectrum at 1 and 450 targets in place of 50."""
METHOD = "products of all columns (of rows, where those are fewer) at once"
RESULTS = ("coef_", "intercept_", "objective_", "dual_objective_")


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Validated rows with several targets."""

    X: Any  # ndarray or CSR matrix of shape (n, d)
    Y: Array  # ndarray of shape (n, K), float64
    weights: Array | None  # ndarray of shape (n,), float64, or None

    @classmethod
    def of(cls, estimator: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool = True) -> "Samples":
        """Validate the arguments of `fit`; attributes of the features are set, or compared without `reset`. Raises
        DataError when a value of X is NaN, infinite, or so large that squares overflow, UsageError when all weights are
        0, ValueError for anything else that scikit-learn refuses."""
        X, y = validated_samples(estimator, X, y, has_real_targets=True, multi_output=True, reset=reset)
        weights = None
        if sample_weight is not None:
            weights = validated_weights(sample_weight, X)
            require_weight(type(estimator).__name__, float(weights.sum()))
        found = cls(X=X, Y=y.astype(np.float64, copy=False).reshape(len(y), -1), weights=weights)
        require_moderate(estimator, found.hook_arguments, is_first=True)
        return found

    @property
    def hook_arguments(self) -> dict[str, Any]:
        """The data as messages want it."""
        return {"X": self.X, "y": self.Y, "metadata": self.score_weights}

    @property
    def y(self) -> Array:
        """The targets as scorers want them, flat where there is one."""
        return self.Y if self.Y.shape[1] > 1 else self.Y[:, 0]

    @property
    def score_weights(self) -> dict[str, Array]:
        """The weights as an argument of a scorer."""
        return {} if self.weights is None else {"sample_weight": self.weights}

    def take(self, rows: Array) -> "Samples":
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        return Samples(X=self.X[rows], Y=self.Y[rows], weights=weights)

    def are_products_small(self) -> bool:
        """Say whether the products fit into a message, or take no more memory than the data."""
        return min(self.X.shape) ** 2 <= max(MOST_BLOCK_VALUES, self.X.size + self.Y.size)


class Products:
    """Centred rows and targets, and their products.

    Args:
        samples: The data.
        has_intercept: Whether rows and targets are centred.
        by_columns: Whether products are those of columns, also where rows are fewer.

    Attributes:
        total, weight: Sum of the weights; the first is infinite without an intercept.
        roots: Roots s of the weights, shape (n,).
        targets: Y, shape (n, K).
        means, target_means: What was taken from rows and targets, shapes (d,) and (K,).
        is_wide: Whether n < d.
        low, target_low: What rounding to `means` and `target_means` took from the means.
        size: Sum of the squares that the products are made of.
        rounding: Share of the sums of squares that rounding may have changed: of each part that the rows came in as
            much, and not less for many, since rounding of equal rows has one sign.
    """

    def __init__(self, samples: Samples, *, has_intercept: bool, by_columns: bool = False) -> None:
        X, Y, (n, d) = samples.X, samples.Y, samples.X.shape
        weights = np.ones(n) if samples.weights is None else samples.weights
        self.weight = float(weights.sum())
        self.total = self.weight if has_intercept else np.inf
        self.roots = np.sqrt(weights)
        self.rounding = EPS
        self.targets, self.target_means, self.target_low = _centred(Y, weights, self.total)
        self.targets *= self.roots[:, None]
        self.floor = LEAST_RESIDUAL**2 * np.einsum("n,nk,nk->k", weights, Y, Y)
        self.is_wide = n < d and not by_columns
        if sparse.issparse(X):  # zeros stay zeros: what means change is taken from the products
            self.means, self.low = X.T @ weights / self.total, np.zeros(d)
            self._rows: Any = sparse.diags_array(self.roots).dot(X.astype(np.float64))
            self._shift = self.means
            self.size = float((self._rows.data**2).sum())
        else:
            rows, self.means, self.low = _centred(as_floats(X, np.float64), weights, self.total)
            if samples.weights is not None:
                rows *= self.roots[:, None]
            self._rows, self._shift = rows, np.zeros(d)
            self.size = float(np.vdot(rows, rows))

    def times(self, W: Array) -> Array:
        """Return X W."""
        return np.asarray(self._rows @ W - np.outer(self.roots, self._shift @ W))

    def adjoint(self, A: Array) -> Array:
        """Return X' A."""
        return np.asarray(self._rows.T @ A - np.outer(self._shift, self.roots @ A))

    @cached_property
    def right(self) -> Array:
        """Right-hand sides of the equations: X'Y of shape (d, K), or Y where rows are fewer."""
        return self.targets if self.is_wide else self.adjoint(self.targets)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # `require_finite` looks, and names the column
    def gram(self) -> Array:
        """G, shape (m, m)."""
        rows, shift, roots = self._rows, self._shift, self.roots
        found = rows @ rows.T if self.is_wide else rows.T @ rows
        if not sparse.issparse(found):
            return np.asarray(found)
        found = found.toarray()
        if self.is_wide:
            beside = np.outer(rows @ shift, roots)
            return np.asarray(found - beside - beside.T + (shift @ shift) * np.outer(roots, roots))
        return np.asarray(found - np.outer(shift, shift) * (self.total if np.isfinite(self.total) else 0.0))

    @cached_property
    def squares(self) -> Array:
        """|Y|^2 of each target, shape (K,)."""
        return np.asarray(np.einsum("nk,nk->k", self.targets, self.targets))

    def alone(self) -> "Products":
        """Return these products of columns without the rows that they are made of."""
        found = copy.copy(self)
        found.gram, found.right, found.squares = self.gram, self.right, self.squares
        found._rows = found.targets = found.roots = np.zeros(0)
        return found

    def plus(self, other: "Products") -> "Products":
        """Return the products of the columns of these rows and others, without any rows."""
        found, has_intercept = other.alone(), np.isfinite(self.total)
        found.weight, found.total = self.weight + other.weight, self.total + other.total
        share = other.weight / found.weight if has_intercept else 0.0
        # A difference of rounded means may be rounding, of means far from 0, and would not be squared.
        weight, shift = share * self.weight, (other.means - self.means) + (other.low - self.low)
        target_shift = (other.target_means - self.target_means) + (other.target_low - self.target_low)
        found.means, found.low = _sum(self.means, self.low + share * shift)
        found.target_means, found.target_low = _sum(self.target_means, self.target_low + share * target_shift)
        found.rounding = self.rounding + other.rounding
        found.gram = np.outer(weight * shift, shift)
        found.gram += self.gram  # in place: of many columns new memory takes longer than a sum
        found.gram += other.gram
        found.right = self.right + other.right + np.outer(weight * shift, target_shift)
        found.squares = self.squares + other.squares + weight * target_shift**2
        found.floor, found.size = self.floor + other.floor, self.size + other.size + weight * float(shift @ shift)
        return found

    def of_fold(self, samples: Samples, train: Array) -> "Products":
        """Return the products of the rows `train`, some perhaps twice, of `samples`, which these here are of.

        They are made of those rows themselves where differences do not pay, or would be the rounding of what was taken
        away: where next to nothing is left of a column.
        """
        train = np.arange(len(self.roots))[train]
        is_left = np.bincount(train, minlength=len(self.roots)) == 0
        roots, num_left = self.roots[is_left], int(is_left.sum())
        total = self.total - float(roots @ roots)
        has_few = len(train) == len(is_left) - num_left > num_left and total > 0
        if has_few and not (self.is_wide or sparse.issparse(self._rows)):
            rows, targets, found = self._rows[is_left], self.targets[is_left], copy.copy(self)
            shift, target_shift = -(roots @ rows) / total, -(roots @ targets) / total
            weight = total if np.isfinite(total) else 0.0
            found.total, found.means, found.target_means = total, self.means + shift, self.target_means + target_shift
            found.gram = self.gram - rows.T @ rows - np.outer(weight * shift, shift)
            found.right = self.right - rows.T @ targets - np.outer(weight * shift, target_shift)
            if (np.diagonal(found.gram) >= LEAST_LEFT * np.diagonal(self.gram)).all():
                return found
        return Products(samples.take(train), has_intercept=bool(np.isfinite(self.total)))

    def scores(self, others: Samples, alphas: Array, score: Callable[[Array], float], *, is_r2: bool) -> list[float]:
        """Score by alpha what the solutions predict for other rows.

        Args:
            others: These rows.
            alphas: Penalties.
            score: From predictions, shape (n, K), to their score.
            is_r2: Whether that is the mean of R^2 over the targets.
        """
        rows = others.X if sparse.issparse(others.X) else as_floats(others.X, np.float64)
        if SPECTRUM * len(self.gram) > len(alphas) * (len(self.gram) + 6 * others.Y.shape[1]):
            models = (self.weights_of(self.solutions(alpha)) for alpha in alphas)
            return [score(np.asarray(rows @ W) + (self.target_means - self.means @ W)) for W in models]
        with one_blas_thread():
            values, vectors = eigh(self.gram, driver="evd")
        values = np.where(values > EPS * self.size, values, 0.0)
        basis, turned = self.weights_of(vectors), vectors.T @ self.right
        found = np.asarray(rows @ basis) - self.means @ basis
        weights = np.ones(len(found)) if others.weights is None else others.weights
        if is_r2 and weights.any():
            roots = np.sqrt(weights)[:, None]
            squares = weights @ (others.Y - weights @ others.Y / weights.sum()) ** 2
            if (squares > LEAST_RESIDUAL**2 * (weights @ others.Y**2)).all():
                found, errors, shares = found * roots, (others.Y - self.target_means) * roots, 1.0 / squares
                along = ((found.T @ errors) * turned) @ shares
                square = (found.T @ found) * ((turned * shares) @ turned.T)
                most = (errors**2).sum(axis=0) @ shares
                each = [1.0 / (values + alpha) for alpha in alphas]
                return [1.0 - float(most - 2.0 * along @ z + z @ square @ z) / len(shares) for z in each]
        return [score(found @ (turned / (values + alpha)[:, None]) + self.target_means) for alpha in alphas]

    def solutions(self, alpha: float, columns: Any = slice(None)) -> Array:
        """Solve the equations for some targets; shape (m, number of them).

        Where rounding of G is larger than alpha there is no factor, and eigenvalues that are rounding count as 0.
        """
        matrix = self.gram.copy()
        matrix[np.diag_indices_from(matrix)] += alpha
        right = self.right[:, columns]
        with one_blas_thread():
            try:
                return np.asarray(cho_solve(cho_factor(matrix, overwrite_a=True), right))
            except LinAlgError:
                values, vectors = eigh(self.gram)
        values = np.where(values > self.rounding * self.size, values, 0.0)[:, None]
        return np.asarray(vectors @ ((vectors.T @ right) / (values + alpha)))

    def require_finite(self, estimator: Any, samples: Samples) -> None:
        """Refuse what has no products. Raises DataError when values are not finite, or squares overflow; it names the
        column."""
        if not (np.isfinite(self.gram).all() and np.isfinite(self.right).all()):
            require_finite(estimator, samples.X)
            require_finite_model(estimator, np.full(1, np.nan), samples.hook_arguments)

    def weights_of(self, solutions: Array) -> Array:
        """Return W, shape (d, number of targets)."""
        return self.adjoint(solutions) if self.is_wide else solutions

    @np.errstate(over="ignore", invalid="ignore")
    def certificates(
        self, solutions: Array, W: Array, alpha: float, columns: Any = slice(None)
    ) -> tuple[Array, Array, Array]:
        """P, D and the relative gap of each target, what rounding of products and intercepts may hide included."""
        right, squares = self.right[:, columns], self.squares[columns]
        products = self.gram @ solutions
        left = right - products - alpha * solutions
        rounding = self.rounding * self.size * np.sqrt((solutions**2).sum(axis=0))
        if self.is_wide:
            primal = ((left + alpha * solutions) ** 2).sum(axis=0) + alpha * (solutions * products).sum(axis=0)
            gap = (np.sqrt((left * (self.gram @ left)).sum(axis=0).clip(0)) + np.sqrt(self.size) * rounding) ** 2
        else:
            primal = squares - (solutions * (right + left)).sum(axis=0)
            gap = (np.sqrt((left**2).sum(axis=0)) + rounding) ** 2
            squares = squares + self.size * (solutions**2).sum(axis=0)  # P is a difference of products
        gap = gap / alpha + self.rounding * squares
        if np.isfinite(self.total):
            gap += self.total * (self.rounding * (np.abs(self.means) @ np.abs(W))) ** 2
        primal = np.maximum(primal, 0.0)
        return primal, np.maximum(primal - gap, 0.0), gap / np.maximum(primal, np.maximum(self.floor[columns], TINY))

    def errors_of_each_left_out(self, alphas: Array) -> Iterator[Array]:
        """Yield by alpha the errors of Y where each row was left out of the fit, times s; shape (n, K). Raises
        UsageError when sparse rows have products whose rounding is larger than a penalty.

        Dense rows are factored themselves: squares would lose singular values below 1e-8 of the largest one.
        """
        unit = self.roots / np.sqrt(self.total)
        if sparse.issparse(self._rows):
            if EPS * self.size > alphas.min():
                raise UsageError(
                    f"ChicleRidgeCV: rounding of the products of sparse rows ({EPS * self.size:.1g}) is more than the "
                    f"penalty {alphas.min():g}; scale the columns (sklearn.preprocessing.MaxAbsScaler), raise it, or "
                    "pass dense rows"
                )
            gram = self.gram + self.size * np.outer(unit, unit) if self.is_wide else self.gram
            with one_blas_thread():
                squares, vectors = eigh(gram)
            squares = squares.clip(0.0)[:, None]
            basis = vectors if self.is_wide else self.times(vectors) / np.sqrt(np.maximum(squares.T, EPS * self.size))
        else:
            # The intercept gets a value of its own, else it is lost among others that are 0.
            rows = np.column_stack([self._rows, np.sqrt(self.size) * unit]) if self.is_wide else self._rows
            with one_blas_thread():
                basis, values, _ = svd(rows, full_matrices=False)
            squares = (values**2)[:, None]
        turned, weights = basis.T @ self.targets, basis**2
        for alpha in alphas:
            if self.is_wide:
                share = alpha / (squares + alpha)
                errors, free = basis @ (share * turned), weights @ share
                free -= (unit**2 * alpha / (self.size + alpha))[:, None]
            else:
                share = squares / (squares + alpha)
                errors, free = self.targets - basis @ (share * turned), 1.0 - weights @ share
                free -= (unit**2)[:, None]
            yield errors / free


def _centred(values: Array, weights: Array, total: float) -> tuple[Array, Array, Array]:
    """Return a copy less its weighted means, these, and what rounding took from them.

    Rounding of sums far from 0 is found in what is left.
    """
    means = weights @ values / total
    values, rest = values - means, np.zeros_like(means)
    if np.isfinite(total):
        rest = weights @ values / total
        values -= rest
    return values, *_sum(means, rest)


def _sum(values: Array, more: Array) -> tuple[Array, Array]:
    """Return a sum, and exactly what rounding took from it (Knuth's TwoSum)."""
    found = values + more
    added = found - values
    return found, (values - (found - added)) + (more - added)


def fit_at_once(
    estimator: Any, samples: Samples, products: Products, alphas: Array, *, alone: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return the attributes of a ridge regression of all targets. Raises DataError when values are not finite, or
    squares overflow.

    Args:
        estimator: What data that cannot be is called by.
        samples: The data.
        products: Of the same.
        alphas: Penalty of each target, shape (K,).
        alone: Makes the ridge regression of a target that has to be fitted by itself; None for no such fits.
    """
    begin = time.monotonic()
    products.require_finite(estimator, samples)
    makers = None if alone is None else [partial(alone, alpha, max_iter=estimator.max_iter) for alpha in alphas]
    return finished(estimator, samples, products, results_of(products, alphas), makers, begin)


def results_of(products: Products, alphas: Array) -> "Results":
    """Return the ridge regressions of all targets, with penalties of shape (K,)."""
    K, d = len(alphas), len(products.means)
    coef, gaps = np.zeros((K, d)), np.full(K, np.inf)
    primal, dual = np.zeros((2, K))
    for alpha in np.unique(alphas):
        columns = np.flatnonzero(alphas == alpha) if len(np.unique(alphas)) > 1 else slice(None)
        found = products.solutions(alpha, columns)
        W = products.weights_of(found)
        primal[columns], dual[columns], gaps[columns] = products.certificates(found, W, alpha, columns)
        coef[columns] = W.T
    return Results(coef=coef, primal=primal, dual=dual, gaps=gaps)


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """Of each target."""

    coef: Array  # shape (K, d)
    primal: Array  # P, D and the relative gap, shape (K,)
    dual: Array
    gaps: Array


def finished(
    estimator: Any,
    samples: Samples,
    products: Products,
    results: Results,
    alone: Sequence[Callable[..., Any]] | None,
    begin: float,
) -> dict[str, Any]:
    """Return the attributes of a fit, after fits of targets whose gap is above `tol`.

    Args:
        estimator: Being fitted.
        samples: The data.
        products: Of the same.
        results: Of all targets.
        alone: Makes by target the regression for a job of its own; None for no such fits.
        begin: When the fit began, as `time.monotonic` says it.
    """
    coef, primal, dual, gaps = results.coef, results.primal, results.dual, results.gaps
    attributes: dict[str, Any] = {
        "coef_": coef,
        "intercept_": products.target_means - coef @ products.means,
        "objective_": primal,
        "dual_objective_": dual,
        "n_iter_": 1,
        **_accounts(samples, {"objective": primal, "dual_objective": dual, "duality_gap": gaps}, begin),
    }
    for k in np.flatnonzero(~(gaps <= estimator.tol)):
        if alone is None:
            break
        params = {"fit_intercept": estimator.fit_intercept, "tol": estimator.tol, "runtime": InProcess(num_tasks=1)}
        part = alone[int(k)](**params).fit(samples.X, samples.Y[:, k], samples.weights)
        attributes |= {"history_": part.history_, "ledger_": part.ledger_}
        for name in RESULTS:
            attributes[name][k] = getattr(part, name)
        gaps[k], attributes["n_iter_"] = part.duality_gap_, max(attributes["n_iter_"], part.n_iter_)
    attributes["duality_gap_"] = float(gaps.max())
    return attributes


def of_one_target(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of a fit to one target in the shapes that they have without several."""
    scalars = {name: attributes[name][0].tolist() for name in RESULTS if name != "coef_"}
    return {**attributes, **scalars, "coef_": attributes["coef_"][0]}


def _accounts(samples: Samples, figures: dict[str, Array], begin: float) -> dict[str, Any]:
    """Return history and ledger of a fit whose only chunk are the arrays themselves."""
    accounts = Accounts([samples.X.shape[0]], begin)
    accounts.add({name: values.max() if name == "duality_gap" else values.sum() for name, values in figures.items()})
    accounts.history.methods = {1: METHOD}
    return {"history_": accounts.history, "ledger_": accounts.ledger()}


def fit_one_by_one(estimator: Any, samples: Samples) -> dict[str, Any]:
    """Return the attributes of fits of an estimator to each target; history and ledger are those of the largest gap."""
    params, parts = estimator.get_params(deep=False), []
    coef, intercept = weights_of(estimator)
    for k, y in enumerate(samples.Y.T):
        part = type(estimator)(**params)
        if params.get("warm_start") and np.shape(coef) == (samples.Y.shape[1], samples.X.shape[1]):
            part.coef_, part.intercept_ = coef[k], intercept[k]
        parts.append(part.fit(samples.X, y, samples.weights))
    worst = max(parts, key=lambda part: part.duality_gap_)
    attributes = {name: np.array([getattr(part, name) for part in parts]) for name in RESULTS}
    attributes |= {name: getattr(worst, name) for name in ("duality_gap_", "history_", "ledger_")}
    return {**attributes, "n_iter_": max(part.n_iter_ for part in parts)}

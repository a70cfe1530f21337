"""Optima of linear models by another way than the project's: Newton's method on rounded corners, by QR, in NumPy.

An objective is a sum of terms c f(<a, w> - b), and f is smooth or has one corner. Corners are rounded off over widths
that fall by `NARROWER` until they are below the digits of the arguments. A step is one of least squares, which sees
the condition of the rows and not its square. The objective is that of the sharp terms, and the best one counts.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import qr, solve_triangular
from scipy.special import expit, xlogy
from sklearn.base import is_classifier

from chicle_elastic.chunks.views import Array
from estimators import ChicleElasticNet, ChicleLasso, ChiclePoisson, ChicleRidge, ChicleSVR
from tests.estimators import problems

NARROWER, NUM_WIDTHS, MOST_STEPS = 0.25, 26, 60
TINY = 1e-300
_least_of: dict[bytes, float] = {}


@dataclass
class Terms:
    """Terms c f(A w - b); f is "square", "abs", "hinge" (max(0, t)), "squared_hinge", "logistic" (log(1 + e^t)), "exp",
    or "linear"."""

    A: Array
    b: Array
    c: Array
    f: str
    unit: Array | float = 1.0

    def at(self, w: Array, width: float) -> list[Array]:
        """Return c f and its first and second derivatives, each of shape (n,); corners are `width` units wide."""
        t, widths = self.A @ w - self.b, width * self.unit
        if self.f == "square":
            parts = t * t, 2 * t, np.full_like(t, 2.0)
        elif self.f == "squared_hinge":
            plus = np.maximum(t, 0)
            parts = plus * plus, 2 * plus, 2.0 * (t > 0)
        elif self.f == "linear":
            parts = t, np.ones_like(t), np.zeros_like(t)
        elif self.f == "exp":
            parts = (np.exp(t),) * 3
        elif self.f == "logistic":
            parts = np.logaddexp(0, t), expit(t), expit(t) * expit(-t)
        else:
            root = np.hypot(t, widths)
            safe = np.maximum(root, TINY)
            parts = root, t / safe, (widths / safe) ** 2 / safe
            if self.f == "hinge":
                parts = 0.5 * (root + t), 0.5 * (parts[1] + 1), 0.5 * parts[2]
        return [self.c * part for part in parts]


def value_at(terms: list[Terms], w: Array, width: float = 0.0) -> float:
    """Return the sum of all terms."""
    return float(sum(each.at(w, width)[0].sum() for each in terms))


def least_and_own(terms: list[Terms], w: Array) -> tuple[float, float, float]:
    """Return the least sum of the terms, their sum at w and at 0; columns are scaled first."""
    scale = np.abs(terms[0].A).max(axis=0)
    scale[scale == 0] = 1.0
    first, *others = terms
    scaled = [Terms(first.A / scale, first.b, first.c, first.f)]
    # Others are of the weights: their corners are as wide as those of the scaled ones.
    units = [np.abs(each.A / scale).max(axis=1) for each in others]
    scaled += [Terms(each.A / scale, each.b, each.c, each.f, unit) for each, unit in zip(others, units, strict=True)]
    width = max(float(np.abs(first.b).max()), 1.0 if first.f in ("logistic", "exp") else TINY)
    content = b"".join(each.f.encode() + part.tobytes() for each in terms for part in (each.A, each.b, each.c))
    key = hashlib.sha256(content).digest()  # fits to one problem that are cut short after 1, 2, 3 iterations share it
    if key not in _least_of:
        _least_of[key] = _least(scaled, width, np.zeros(len(w)))
    return _least_of[key], value_at(terms, w), value_at(terms, 0 * w)


def _least(terms: list[Terms], width: float, w: Array) -> float:
    best = np.inf
    for now in width * NARROWER ** np.arange(NUM_WIDTHS if {"abs", "hinge"} & {each.f for each in terms} else 1):
        for _ in range(MOST_STEPS):
            parts = [each.at(w, now) for each in terms]
            value = sum(part[0].sum() for part in parts)
            gradient = np.sum([each.A.T @ part[1] for each, part in zip(terms, parts, strict=True)], axis=0)
            rows = np.vstack([np.sqrt(part[2])[:, None] * each.A for each, part in zip(terms, parts, strict=True)])
            step = -_solved(rows, gradient)
            slope, share = gradient @ step, 1.0
            while value_at(terms, w + share * step, now) > value + 1e-4 * share * slope and share > 1e-10:
                share *= 0.5
            if share <= 1e-10:
                break
            w = w + share * step
            best = min(best, value_at(terms, w))
            if -slope <= 1e-14 * abs(value):
                break
    return best


def _solved(rows: Array, right: Array) -> Array:
    """Return (rows^T rows)^-1 right, of least squares where that is singular."""
    scale = np.sqrt((rows * rows).sum(axis=0))
    scale[scale == 0] = 1.0
    rows = rows / scale
    order = np.argsort(-np.abs(rows).max(axis=1))  # then rows of very different size keep their digits
    R, pivots = qr(rows[order], mode="r", pivoting=True)
    R = R[: len(right)]
    rank = int((np.abs(R.diagonal()) > 1e-15 * abs(R[0, 0])).sum())
    found = np.zeros(len(right))
    half = solve_triangular(R[:rank, :rank], (right / scale)[pivots[:rank]], trans="T")
    found[pivots[:rank]] = solve_triangular(R[:rank, :rank], half)
    return found / scale


def terms_of(model: Any, X: Any, y: Array, weights: Array | None = None) -> Iterator[tuple[list[Terms], Array]]:
    """Yield the terms of the objective and the weights of each output of a fitted model; the intercept comes last."""
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
    (n, d), s = X.shape, np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    found = np.atleast_2d(model.coef_)
    if model.fit_intercept:
        X, found = np.column_stack([X, np.ones(n)]), np.column_stack([found, np.ravel(model.intercept_)])
    units = np.eye(X.shape[1])[:d]
    is_penalised = isinstance(model, ChicleSVR) or (is_classifier(model) and model._penalises_intercept())
    if model.fit_intercept and is_penalised:
        units = np.diag(np.append(np.ones(d), 1.0 / model.intercept_scaling))

    def penalties(l2: float, l1: float = 0.0) -> list[Terms]:
        pairs = [(l2, "square"), (l1, "abs")]
        return [Terms(units, np.zeros(len(units)), np.full(len(units), c), f) for c, f in pairs if c]

    if isinstance(model, ChicleRidge):
        terms = [Terms(X, y, s, "square"), *penalties(model.alpha)]
    elif isinstance(model, ChicleLasso | ChicleElasticNet):
        l1 = model.alpha * getattr(model, "l1_ratio", 1.0)
        terms = [Terms(X, y, s / (2 * s.sum()), "square"), *penalties((model.alpha - l1) / 2, l1)]
    elif isinstance(model, ChicleSVR):
        corner, side = ("square", "squared_hinge") if model.loss.startswith("squared") else ("abs", "hinge")
        tube = [Terms(sign * X, sign * y + model.epsilon, model.C * s, side) for sign in (1.0, -1.0)]
        terms = [*(tube if model.epsilon else [Terms(X, y, model.C * s, corner)]), *penalties(0.5)]
    elif isinstance(model, ChiclePoisson):
        s = s / s.sum()
        constant = Terms(0 * X, y - xlogy(y, y), s, "linear")
        terms = [Terms(X, 0 * y, s, "exp"), Terms(X, 0 * y, -s * y, "linear"), constant, *penalties(model.alpha / 2)]
    if not is_classifier(model):
        yield terms, found[0]
        return
    f, l1 = getattr(model, "loss", "logistic"), model._l1_share()
    for k, w in enumerate(found):
        signs = np.where(y == model.classes_[k if len(found) > 1 else 1], 1.0, -1.0)
        edge = np.full(n, 0.0 if f == "logistic" else -1.0)
        yield [Terms(-signs[:, None] * X, edge, model.C * s, f), *penalties((1.0 - l1) / 2, l1)], w


def require_certified(model: Any, X: Any, y: Array, weights: Array | None = None, *, tol: float | None = None) -> None:
    """Ask that objectives are those of the weights, and that gaps bound how far they are above the least ones."""
    assert model.fit_intercept or not np.any(model.intercept_)
    if getattr(model, "multi_class_", "") == "multinomial":
        P, D = problems.multinomial_bounds(model, X, y, weights)
        assert model.objective_[0] == pytest.approx(P, rel=1e-9)
        assert model.dual_objective_[0] <= P
        assert model.duality_gap_ == pytest.approx(1 - D / P, rel=1e-6, abs=1e-9)
    else:
        pairs = zip(np.ravel(model.objective_), np.ravel(model.dual_objective_), strict=True)
        for (terms, w), (P, D) in zip(terms_of(model, X, y, weights), pairs, strict=True):
            least, own, _ = least_and_own(terms, w)
            assert pytest.approx(own, rel=1e-9) == P
            assert least * (1 + 1e-9) >= D, "the dual objective is no bound"
            assert own * (1 + 1e-9) >= least, "the reference has not found the least value"
            assert model.duality_gap_ * P * (1 + 1e-6) + 1e-12 * P >= P - D
    if tol is None or tol >= 0:
        assert model.duality_gap_ <= (model.tol if tol is None else tol)

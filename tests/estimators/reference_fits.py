"""Optima of linear models by another way than the project's: Newton's method on rounded corners, by QR, in NumPy.

An objective is a sum of terms c f(<a, w> - b), and f is smooth or has one corner. Corners are rounded off over widths
that fall by `NARROWER` until they are below the digits of the arguments. A step is one of least squares, which sees
the condition of the rows and not its square. The objective is that of the sharp terms, and the best one counts.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.special import expit

from chicle_elastic.chunks.views import Array

NARROWER, NUM_WIDTHS, MOST_STEPS = 0.25, 26, 60
TINY = 1e-300


@dataclass
class Terms:
    """Terms c f(A w - b); f is "square", "abs", "hinge" (max(0, t)), "squared_hinge" or "logistic" (log(1 + e^t))."""

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
    width = max(float(np.abs(first.b).max()), 1.0 if first.f == "logistic" else TINY)
    return _least(scaled, width, np.zeros(len(w))), value_at(terms, w), value_at(terms, 0 * w)


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

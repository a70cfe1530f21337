"""The multinomial loss, its dual, and the gap between them, in plain NumPy.

With scores z_i = W x_i + b of K classes, probabilities p_i = softmax(z_i), C_i = C * weight_i and y_i a unit vector,
primal and dual are those of scikit-learn's LogisticRegression:

    P(W, b) = 1/2 |W|^2 + sum_i C_i (log sum_k exp(z_ik) - <y_i, z_i>)
    D(p)    = sum_i C_i H(p_i) - 1/2 |A|^2,     A = sum_i C_i (y_i - p_i) x_i^T,     H(p) = - sum_k p_k log p_k

for any p_i >= 0 that add up to 1. The intercept is not penalised, so sum_i C_i (y_i - p_i) has to be 0. At W and b it
is not: it is -r, the gradient of b. With the share n = (sum_i C_i y_i) / S of each class, S = sum_i C_i, these are
feasible:

    p'_i = (1 - t) p_i + t q,     q = n - (1 - t) / t r / S,     t / (1 - t) = max_k r_k / (S n_k)

t is the least share that leaves q >= 0. H is concave, so sum_i C_i H(p'_i) >= (1 - t) sum_i C_i H(p_i) + t S H(q), and
no pass is needed to find D. That is dear unless r is small, because probabilities near 0 become t. So a run ends with a
Newton step of the intercepts alone, which takes r to its square.

Scores have the shape (K, n): sums over classes are then sums of long vectors.
"""

import math
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared

LEFT_OUT = -1e30  # Intercept of a class without weight: its probability is 0, whatever the scores of others are


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Probabilities of some samples, and sums over them."""

    probabilities: Array  # p_i, shape (K, n), float64
    weighted: Array  # C_i p_i, shape (K, n), float64
    loss: float  # sum_i C_i (log sum_k exp(z_ik) - z_iy)
    entropy: float  # sum_i C_i H(p_i)

    @classmethod
    def of(cls, scores: Array, codes: Array, upper: Array) -> "Softmax":
        """Find them from scores z_i, shape (K, n), class codes and C_i, each of shape (n,)."""
        shifted, p, sums = softmax(scores)
        weighted = p * upper
        log_sums = float(upper @ np.log(sums))
        return cls(
            probabilities=p,
            weighted=weighted,
            loss=log_sums - float(upper @ shifted[codes, np.arange(len(codes))]),
            entropy=log_sums - float(np.vdot(weighted, shifted)),
        )

    def slopes(self, codes: Array, upper: Array) -> Array:
        """C_i (p_i - y_i), shape (K, n)."""
        slopes = self.weighted.copy()
        slopes[codes, np.arange(len(codes))] -= upper
        return slopes

    def intercept_curvatures(self) -> Array:
        """Second derivatives with respect to the intercepts, sum_i C_i (diag(p_i) - p_i p_i^T), shape (K, K)."""
        return np.diag(self.weighted.sum(axis=1)) - self.weighted @ self.probabilities.T


def softmax(scores: Array) -> tuple[Array, Array, Array]:
    """Scores less their largest, probabilities, and the sums behind them; shapes (K, n), (K, n) and (n,)."""
    shifted = scores - scores.max(axis=0)
    p = np.exp(shifted)
    sums = p.sum(axis=0)
    p /= sums
    return shifted, p, sums


def mixture(residual: Array, totals: Array) -> tuple[float, Array]:
    """Return what makes probabilities feasible, p'_i = (1 - t) p_i + t q: t, from 0 to 1, and q, shape (K,), float64.

    For the gradient r of the intercepts and sum_i C_i y_i, each of shape (K,): t / (1 - t) is how far r is above 0, as
    a share of its class, at most.
    """
    ratios = [r / n if n > 0 else math.inf for r, n in zip(residual.tolist(), totals.tolist(), strict=True) if r > 0]
    reach = max(ratios, default=0.0 if np.isfinite(residual).all() else math.nan)
    total = _sum(totals)
    shares = totals / total
    if not reach > 0 or not math.isfinite(reach):
        return 0.0 if reach == 0 else 1.0, shares
    return reach / (1.0 + reach), np.maximum(shares - residual / (reach * total), 0.0)


def entropy_of(p: Array) -> float:
    """H(p) of one distribution, shape (K,)."""
    return -_sum(np.array([value * math.log(value) for value in p.tolist() if value > 0]))


def primal_and_dual(
    model: Array,  # W and, as the last column, b, shape (K, d + 1)
    gradient: Array,  # sum_i C_i (p_i - y_i) (x_i, 1)^T, shape (K, d + 1)
    loss: float,  # loss, entropy: see `Softmax`
    entropy: float,
    linear: Array,  # sum_i C_i y_i (x_i, 1)^T, shape (K, d + 1)
    has_intercept: bool,  # whether b is anything but 0
) -> tuple[float, float]:
    """P at W and b, and D of the probabilities there, made feasible."""
    primal = 0.5 * squared(model[:, :-1].ravel()) + loss
    part = -gradient[:, :-1]
    if not has_intercept:
        return primal, entropy - 0.5 * squared(part.ravel())
    class_sums, totals = linear[:, :-1], linear[:, -1]
    t, q = mixture(gradient[:, -1], totals)
    if t > 0:
        all_sums = np.add.reduce(class_sums, axis=0)
        part = (1.0 - t) * part + t * (class_sums - q[:, np.newaxis] * all_sums)
        entropy = (1.0 - t) * entropy + t * _sum(totals) * entropy_of(q)
    return primal, entropy - 0.5 * squared(part.ravel())


def _sum(values: Array) -> float:
    """Add up in a fixed order: what is decided by it is the same on every processor."""
    return dot(values, np.ones(len(values)))

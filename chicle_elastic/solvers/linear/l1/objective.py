"""An objective with an l1 penalty, its dual points, and how much they certify. Plain NumPy.

With scores z_i = <w, x_i> + b, C_i = C * weight_i, and b the weight of the intercept column, whose value is part of x_i
from here on,

    P(w) = sum_i C_i loss(z_i) + sum_j (l1 |w_j| + l2/2 w_j^2)
    D(a) = sum_i dual_i(a_i) - sum_j penalty*(v_j),      v = sum_i a_i x_i

`objectives` has the losses of margins y_i z_i and their dual_i, with a_i y_i in place of a_i. The squared loss is
(y_i - z_i)^2 / 2 and has dual_i(a) = a y_i - a^2 / (2 C_i); its C_i are weights that add up to 1. Without l2
penalty*(v_j) is 0 where |v_j| <= l1, and infinite beyond; with l2 it is max(|v_j| - l1, 0)^2 / (2 l2). A column that is
not penalised, as the intercept of the logistic and of the squared loss, needs v_j = 0.

Slopes a_i = -C_i loss'(z_i) need not be feasible. Two steps make them so, and leave them in their box:

    sides         Where the intercept is not penalised, the slopes of the class whose sum is larger are multiplied by
                  the ratio of the two sums, which makes v = 0 in its column. Those of the squared loss lose their mean.
    factor        All are multiplied by l1 / max |v_j| where that is below 1 (Ndiaye et al. 2017, "Gap safe screening
                  rules for sparsity enforcing penalties").

dual_i is concave and 0 at 0, so D(c a) >= c D(a) for 0 <= c <= 1: duals that were scaled with factors of an earlier
look, or that rounding has pushed out of the feasible set, still certify c D(a), whatever c has to be.
"""

from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.objectives import Loss, each_loss_and_slope

BALANCED = 1e-9
"""Share of the sum of duals that the duals of the two classes may differ by, for rounding."""
MOST_ABOVE = 1e-9
"""Share of P that D may be above it, for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeSums:
    """Sums over the samples of each side, at w: the class of the output and the others, or all samples.

    Attributes:
        losses: Of C_i loss(z_i), shape (sides,).
        products: Of a_i z_i with the slopes a_i, shape (sides,). The sum of dual_i(a_i) is theirs and that of losses.
        v: Of a_i x_i, shape (sides, D).
    """

    losses: Array
    products: Array
    v: Array

    @classmethod
    def of(cls, part: Array, sides: int) -> "SlopeSums":
        """Views of a vector of `SlopeSums.size` values."""
        return cls(
            losses=part[:sides],
            products=part[sides : 2 * sides],
            v=part[2 * sides :].reshape(sides, -1),
        )

    @staticmethod
    def size(sides: int, D: int) -> int:
        """Values of the sums in a row."""
        return sides * (2 + D)

    def centred(self, means: Array) -> "SlopeSums":
        """Return those of slopes less their mean, given the means of the columns; of the squared loss alone."""
        mean = float(self.v[0, -1])
        return SlopeSums(
            losses=self.losses - 0.5 * mean * mean,
            products=self.products + mean * mean,
            v=self.v - mean * means,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Of one output.

    Attributes:
        loss: The loss of margins; None is the squared loss of real targets.
        l1, l2: Factors of the penalties, one of them > 0.
        has_free_intercept: Whether the last column is not penalised.
        tol: Relative gap to reach.
    """

    loss: Loss | None
    l1: float
    l2: float
    has_free_intercept: bool
    tol: float = 0.0

    def at(self, scores: Array, targets: Array, upper: Array, sides: int = 1) -> tuple[Array, Array, Array]:
        """Return the sums of losses of each side, and slopes and curvatures of each row; classes are +1 and -1."""
        if self.loss is None:
            residuals = targets - scores
            slopes = upper * residuals
            return np.array([0.5 * (slopes @ residuals)]), slopes, upper
        losses, slopes, curvatures = each_loss_and_slope(self.loss, targets * scores, upper)
        slopes *= targets
        return np.array([losses.sum()]) if sides == 1 else sides_of(losses, targets), slopes, curvatures

    def penalised(self, w: Array) -> Array:
        """The values of penalised columns."""
        return w[:-1] if self.has_free_intercept else w

    def penalty(self, w: Array) -> float:
        """That of w, shape (D,)."""
        w = self.penalised(w)
        l2 = 0.5 * self.l2 * squared(w) if self.l2 else 0.0
        return self.l1 * dot(np.abs(w), np.ones(len(w))) + l2

    @property
    def num_sides(self) -> int:
        """2 where the duals of the two classes get factors of their own, else 1."""
        return 2 if self.has_free_intercept and self.loss is not None else 1

    def factors(self, v: Array) -> Array:
        """Return what the slopes of each side are multiplied by, given their sums times rows; shape (num_sides,)."""
        if self.num_sides == 1:
            return np.ones(1)
        masses = np.abs(v[:, -1])  # of the intercept column
        return masses.min() / np.maximum(masses, TINY)  # zeros where one side has nothing to balance the other

    def factor_and_gap(self, w: Array, primal: float, sums: "SlopeSums", sides: Array) -> tuple[float, float]:
        """The factor of duals, and the gap with it but for a part that vanishes faster than the gap.

        Along a ray the sum of dual_i is concave and 0 at 0, and at 1 its value and slope are known. A parabola has all
        three, and that of the squared loss is one, which may be larger beyond 1.

        Args:
            w: Shape (D,).
            primal: P there.
            sums: Of the slopes at w.
            sides: `factors` of both.
        """
        v = (sides[:, np.newaxis] * sums.v).sum(axis=0)  # in the same order on every processor
        slopes = self.penalised(v)
        feasible = self.l1 / max(float(np.max(np.abs(slopes), initial=0.0)), TINY)
        free, factors = 1.0, []
        if self.loss is None:
            losses = max(float(sums.losses.sum()), TINY)
            free = max(0.0, 1.0 + 0.5 * float(sums.products.sum()) / losses)
        if self.l2:
            steep = max(float(np.max(np.abs(slopes - self.l2 * self.penalised(w)), initial=0.0)), TINY)
            factors = [1.0, free, min(1.0, self.l1 / steep)]
        best, most = min(free, feasible), 0.0
        for factor in (best, *factors):
            share = factor * sides
            dual = float((share * sums.products + (1.0 - (1.0 - share) ** 2) * sums.losses).sum())
            dual -= self._conjugate(factor * v)
            if dual > most:
                best, most = factor, dual
        return best, primal - credible(most, primal)

    def _conjugate(self, v: Array) -> float:
        """Sum of penalty*(v_j) where l2 makes it finite."""
        return 0.5 * squared(np.maximum(np.abs(self.penalised(v)) - self.l1, 0.0)) / self.l2 if self.l2 else 0.0

    def certified(self, dual: float, v: Array, size: float) -> float:
        """D of duals as they are, or of a multiple of them that is feasible; 0, which a = 0 has, where that is all.

        Args:
            dual: Sum of dual_i(a_i).
            v: Theirs, shape (D,).
            size: Sum of |a_i|; of the squared loss that of a_i^2 / (2 C_i), with which D of a multiple is exact.
        """
        is_squared = self.loss is None
        if not is_squared and self.has_free_intercept and not abs(float(v[-1])) <= BALANCED * size:
            return 0.0
        if self.l2:
            return max(0.0, dual - self._conjugate(v))
        top = float(np.max(np.abs(self.penalised(v)), initial=0.0))
        factor = min(1.0, self.l1 / max(top, TINY))
        return max(0.0, factor * (dual + (1.0 - factor) * size * is_squared))


def sides_of(values: Array, targets: Array) -> Array:
    """Sums over the class of the output and over the others, shape (2,)."""
    return np.array([values[targets > 0].sum(), values[targets < 0].sum()])


def credible(dual: float, primal: float) -> float:
    """D, which is never above P; what is far above it was made from slopes that are rounding."""
    return dual if dual <= primal * (1.0 + MOST_ABOVE) else 0.0

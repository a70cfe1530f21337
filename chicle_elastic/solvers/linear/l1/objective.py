"""An objective with an l1 penalty, its dual points, and how much they certify. Plain NumPy.

With scores z_i = <w, x_i> + b, C_i = C * weight_i, and b the weight of the intercept column, whose value is part of x_i
from here on,

    P(w) = sum_i C_i loss(z_i) + sum_j (l1 |w_j| + l2/2 w_j^2)
    D(a) = sum_i dual_i(a_i) - sum_j penalty*(v_j),      v = sum_i a_i x_i

`of_scores` has the losses and their dual_i. That of real targets is (y_i - z_i)^2 with weights that add up to 1/2, so
that dual_i(a) = a y_i - a^2 / (4 C_i). Without l2 penalty*(v_j) is 0 where |v_j| <= l1, and infinite beyond; with l2
it is max(|v_j| - l1, 0)^2 / (2 l2). A column that is not penalised, as the intercept of the logistic and of the squared
loss, needs v_j = 0.

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
from chicle_elastic.solvers.linear.newton.margins import margin_loss
from chicle_elastic.solvers.linear.objectives import SLIGHT, Loss
from chicle_elastic.solvers.linear.regression.losses import RegressionLoss, SquaredEpsilonInsensitive


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Of one output."""

    loss: Loss | None  # the loss of margins; None is the squared loss of real targets
    # l1, l2: Factors of the penalties, one of them > 0
    l1: float
    l2: float
    has_free_intercept: bool  # whether the last column is not penalised
    tol: float = 0.0  # relative gap to reach

    @property
    def of_scores(self) -> RegressionLoss:
        """The loss of scores and targets, per unit of `upper`."""
        return SquaredEpsilonInsensitive() if self.loss is None else margin_loss(self.loss)

    def penalised(self, w: Array) -> Array:
        """The values of penalised columns."""
        return w[:-1] if self.has_free_intercept else w

    def penalty(self, w: Array) -> float:
        """That of w, shape (D,)."""
        w = self.penalised(w)
        l2 = 0.5 * self.l2 * squared(w) if self.l2 else 0.0
        return self.l1 * dot(np.abs(w), np.ones(len(w))) + l2

    def penalty_slope(self, w: Array, direction: Array) -> float:
        """Return the derivative of the penalty at w along a direction."""
        w = self.penalised(w)
        return dot(self.l1 * np.sign(w) + self.l2 * w, direction[: len(w)])

    @property
    def num_sides(self) -> int:
        """2 where the duals of the two classes get factors of their own, else 1."""
        return 2 if self.has_free_intercept and self.loss is not None else 1

    def scaled(self, w: Array, primal: float, sums: Array) -> tuple[Array, float]:
        """Return what the slopes of each side are multiplied by, and the gap with it.

        A part that vanishes faster than the gap is left out: along a ray the sum of dual_i is concave and 0 at 0, and
        at 1 its value and slope are known. A parabola has all three, and that of the squared loss is one. `sums` has,
        of each side (the class of the output and the others, or all), sums of C_i loss(z_i), of a_i z_i with the slopes
        a_i, and of a_i x_i, shape (num_sides, 2 + D). The sum of dual_i(a_i) is that of the first two.
        """
        sides, losses, products, v = np.ones(self.num_sides), sums[:, 0], sums[:, 1], sums[:, 2:]
        if len(sides) == 2:
            masses = np.abs(v[:, -1])  # of the intercept column
            sides = masses.min() / np.maximum(masses, TINY)  # zeros where one side has nothing to balance the other
        v = (sides[:, np.newaxis] * v).sum(axis=0)  # in the same order on every processor
        slopes, factors = self.penalised(v), []
        if self.l2:
            factors = [1.0, self.l1 / max(_most(slopes - self.l2 * self.penalised(w)), self.l1, TINY)]
        best, most = sides, -np.inf
        for factor in (self.l1 / max(_most(slopes), self.l1, TINY), *factors):
            share = factor * sides
            dual = float((share * products + (1.0 - (1.0 - share) ** 2) * losses).sum()) - self._conjugate(factor * v)
            if dual > most:
                best, most = share, dual
        return best, primal - credible(max(most, 0.0), primal)

    def _conjugate(self, v: Array) -> float:
        """Sum of penalty*(v_j) where l2 makes it finite."""
        return 0.5 * squared(np.maximum(np.abs(self.penalised(v)) - self.l1, 0.0)) / self.l2 if self.l2 else 0.0

    def certified(self, dual: float, v: Array, size: float) -> float:
        """D of duals as they are, or of a multiple of them that is feasible; 0, which a = 0 has, where that is all.

        `dual` is the sum of dual_i(a_i), and `size` of |a_i|; of the squared loss of a_i^2 / (4 C_i), which makes D
        exact.
        """
        is_squared = self.loss is None
        if not is_squared and self.has_free_intercept and not abs(float(v[-1])) <= SLIGHT * size:
            return 0.0
        if self.l2:
            return max(0.0, dual - self._conjugate(v))
        factor = self.l1 / max(_most(self.penalised(v)), self.l1)
        return max(0.0, factor * (dual + (1.0 - factor) * size * is_squared))


def _most(slopes: Array) -> float:
    """Return the largest absolute value; 0 for none."""
    return float(np.max(np.abs(slopes), initial=0.0))


def credible(dual: float, primal: float) -> float:
    """D, which is never above P; what is far above it was made from slopes that are rounding."""
    return dual if dual <= primal * (1.0 + SLIGHT) else 0.0

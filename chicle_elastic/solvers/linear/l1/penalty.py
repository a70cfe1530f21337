"""An l1 penalty with or without l2, the dual points that go with it, and how much they certify. Plain NumPy.

With scores z_i = <w, x_i> + b, and b the weight of the intercept column, whose value is part of x_i from here on,

    P(w) = sum_i c_i loss(z_i) + sum_j (l1 |w_j| + l2/2 w_j^2)
    D(a) = sum_i c_i dual_i(a_i) - sum_j penalty*(v_j),      v = sum_i c_i a_i x_i

Without l2 penalty*(v_j) is 0 where |v_j| <= l1, and infinite beyond; with l2 it is max(|v_j| - l1, 0)^2 / (2 l2). A
column that is not penalised, as the intercept of the logistic and of the squared loss, needs v_j = 0.

Slopes a_i = -loss'(z_i) need not be feasible. Two steps make them so, and leave them in their box:

    sides         Where the intercept is not penalised, the slopes of the sign whose sum is larger are multiplied by the
                  ratio of the two sums, which makes v = 0 in its column. Those of the squared loss lose their mean.
    factor        All are multiplied by l1 / max |v_j| where that is below 1 (Ndiaye et al. 2017, "Gap safe screening
                  rules for sparsity enforcing penalties").

dual_i is concave and 0 at 0, so D(c a) >= c D(a) for 0 <= c <= 1: duals that were scaled with factors of an earlier
look, or that rounding has pushed out of the feasible set, still certify c D(a), whatever c has to be.
"""

from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, dots, squared
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.objectives import SLIGHT


@dataclass(frozen=True, slots=True)
class L1Penalty:
    """The penalty of one output; vectors have the shape (D,), and 0 in a column that is not penalised."""

    l1: float  # factor of |w|_1, > 0 if l2 is 0
    l2: float  # factor of 1/2 |w|^2

    def value(self, w: Array) -> float:
        """Return that of w."""
        return self.l1 * dot(np.abs(w), np.ones(len(w))) + (0.5 * self.l2 * squared(w) if self.l2 else 0.0)

    def slope(self, w: Array, direction: Array) -> float:
        """Return its derivative at w along a direction."""
        return dot(self.l1 * np.sign(w) + self.l2 * w, direction)

    def conjugate(self, v: Array) -> float:
        """Sum penalty*(v_j) where l2 makes it finite; else 0."""
        return 0.5 * squared(np.maximum(np.abs(v) - self.l1, 0.0)) / self.l2 if self.l2 else 0.0

    def factor(self, v: Array) -> float:
        """Return what duals with this v are multiplied by to be feasible without l2."""
        return self.l1 / max(largest(v), self.l1, TINY)

    def scaled(self, w: Array, primal: float, losses: Array, v: Array) -> tuple[Array, float]:
        """Return what the slopes of each side are multiplied by, and the gap with it.

        A part that vanishes faster than the gap is left out: along a ray the sum of dual_i is concave and 0 at 0, and
        at 1 its value and slope are known. A parabola has all three, and that of the squared loss is one. Of each side
        (the positive slopes and the others, or all), `losses` are sums, shape (sides,), and `v` is sum_i c_i a_i x_i
        of the slopes, shape (sides, D), the intercept's at the end. <w, v> is the sum of c_i a_i z_i, so that the sum
        of dual values is that of both.
        """
        sides, products = np.ones(len(losses)), dots(np.tile(w, (len(v), 1)), v)
        if len(sides) == 2:
            masses = np.abs(v[:, -1])
            sides = masses.min() / np.maximum(masses, TINY)  # zeros where one side has nothing to balance the other
        v = (sides[:, np.newaxis] * v).sum(axis=0)  # in the same order on every processor
        if len(sides) == 2:
            v[-1] = 0.0
        factors = [self.factor(v)]
        if self.l2:
            factors += [1.0, self.factor((v - self.l2 * w)[: len(w) - (len(sides) == 2)])]
        best, highest = sides, -np.inf
        for factor in factors:
            share = factor * sides
            dual = float((share * products + (1.0 - (1.0 - share) ** 2) * losses).sum())
            dual -= self.conjugate(factor * v) if self.l2 else 0.0
            if dual > highest:
                best, highest = share, dual
        return best, primal - credible(max(highest, 0.0), primal)

    def lack(self, w: Array, v: Array, of_losses: float, primal: float, size: float) -> float:
        """Return P - D of duals as they are, or of a multiple of them that is feasible.

        Args:
            w, v: The point, and sum_i c_i a_i x_i of the duals.
            of_losses: Sum of losses, less dual values and <w, v>.
            primal: P.
            size: What makes D exact where it is a parabola along the ray: the sum of c_i a_i^2 / 4; else 0.
        """
        lack = of_losses + dot(self.l1 * np.abs(w) + (0.5 * self.l2 * w - v) * w, np.ones(len(w)))
        if self.l2:
            return lack + self.conjugate(v)
        factor = self.factor(v)
        return primal - factor * (primal - lack + (1.0 - factor) * size)


def largest(slopes: Array) -> float:
    """Return the largest absolute value; 0 for none."""
    return float(np.max(np.abs(slopes), initial=0.0))


def credible(dual: float, primal: float) -> float:
    """D, which is never above P; what is far above it was made from slopes that are rounding."""
    return dual if dual <= primal * (1.0 + SLIGHT) else 0.0

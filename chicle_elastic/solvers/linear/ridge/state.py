"""What all tasks have in common while a ridge regression runs, and the layout of the sums of a pass.

Notation of `steps`: d features, s_i the weight of sample i, S their sum.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.progress import ProgressState

HEAD, ALONE = 3, 2
"""Values that every sum begins with (`pass_solver`), and the place of the tasks that are the only one among them."""
FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""


class RidgePhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """Means of features and targets."""
    EVALUATE = 1
    """Residual at w, and with `has_factor` the second derivatives."""
    MULTIPLY = 2
    """The product of the second derivatives with the direction."""
    REST = 3
    """Nothing: w is good enough, and a certificate follows."""


@dataclass(slots=True, kw_only=True)
class RidgeState(ProgressState):
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        is_sparse: Rows are CSR, whose second derivatives come without centring.
        is_rough: Second derivatives are summed up in float32, and products repair what that does.
        has_factor: There is room for all second derivatives.
        has_products: They are known already.
        num_rows: Rows that the means are of.
        total_weight: S.
        target_mean: Weighted mean of the targets; 0 without intercept.
        primal: The objective at w; infinite where it is not known.
        gap: Duality gap at w; infinite where it is not known.
        share: Share of tol below which the run rests.
        num_products: Products since the residual was evaluated.
        means: Weighted mean of each feature, shape (d,); 0 without intercept.
        scale: One over the square root of the diagonal of the second derivatives, shape (d,).
        residual: Half the negative gradient, X_c^T s r - alpha w, shape (d,).
        change: What is added to w in the duals, shape (d,).
        direction: Where to go from w, shape (d,).
        factor: Cholesky factor of the scaled second derivatives, packed by rows; wide data has none.
    """

    phase: RidgePhase = RidgePhase.LOOK
    is_sparse: bool = False
    is_rough: bool = False
    has_factor: bool = False
    has_products: bool = False
    num_rows: float = 0.0
    total_weight: float = 0.0
    target_mean: float = 0.0
    primal: float = np.inf
    gap: float = np.inf
    share: float = FIRST_SHARE
    num_products: int = 0
    means: Array
    scale: Array
    residual: Array
    change: Array
    direction: Array
    factor: Array

    @classmethod
    def fresh(cls, d: int, *, is_sparse: bool, is_rough: bool, has_factor: bool) -> "RidgeState":
        """Before the first pass over rows of `d` features."""
        zeros = np.zeros(d)
        factor = np.zeros(d * (d + 1) // 2 if has_factor else 0)
        return cls(
            is_sparse=is_sparse,
            is_rough=is_rough,
            has_factor=has_factor,
            means=zeros,
            scale=zeros,
            residual=zeros,
            change=zeros,
            direction=zeros,
            factor=factor,
        )

    @property
    def d(self) -> int:
        """Features."""
        return len(self.means)

    @property
    def needs_products(self) -> bool:
        """Whether this pass sums up second derivatives."""
        return self.phase is RidgePhase.EVALUATE and self.has_factor and not self.has_products

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, S, sum s y, sum s y^2, sum s x (d), sum s x^2 (d)
        EVALUATE:  HEAD, sum s r, sum s r^2, sum s r x (d), sum s x x^T (packed, where it needs products)
        MULTIPLY:  HEAD, sum s u, sum s u x (d), the direction p (d); u = <x - means, p>
        REST:      HEAD
        """
        d = self.d
        if self.phase is RidgePhase.LOOK:
            return HEAD + 3 + 2 * d
        if self.phase is RidgePhase.EVALUATE:
            return HEAD + 2 + d + (d * (d + 1) // 2 if self.needs_products else 0)
        return HEAD + 1 + 2 * d if self.phase is RidgePhase.MULTIPLY else HEAD

"""What all tasks have in common while a lasso or elastic net runs, and the layout of the sums of a pass.

Notation of `steps`: d features, S the sum of the weights, W the working set of h columns.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import NOTHING, Numbers, ProgressState

FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""
PATIENCE = 3
"""Certificates refused before w counts as having no room: the second and third come after better products."""


class LassoPhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """Means of features and targets."""
    EVALUATE = 1
    """Residual and gradient at w; of narrow data the products of all columns with it, if they are not known."""
    MULTIPLY = 2
    """Products of the columns of the working set."""
    SOLVE = 3
    """Nothing: one of several tasks solves for the weights of the working set."""
    REST = 4
    """Nothing: w is good enough, and a certificate follows."""


@dataclass(slots=True, kw_only=True)
class LassoState(ProgressState):
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        is_sparse: Rows are CSR, whose products come without centring.
        is_rough: Products are summed up in float32, and further solutions repair what that does.
        is_narrow: W has all columns.
        num_rows: Rows that the means are of.
        total_weight: S.
        target_mean: Weighted mean of the targets; 0 without intercept.
        primal: The objective at w; infinite where it is not known.
        gap: Duality gap at w, as of the last evaluation; infinite where it is not known.
        share: Share of tol below which the run rests.
        num_solved: Solutions since the products were summed up.
        num_refused: Certificates that were not good enough.
        turn: Which task solves: the one whose rank this is, modulo their number.
        means: Weighted mean of each feature, shape (d,); 0 without intercept.
        norms: Square root of the weighted mean of the centred squares, shape (d,); of wide data alone.
        slopes: X_c^T s r / S at w, shape (d,).
        change: What is added to w in the duals, shape (d,).
        columns: W, ascending, shape (h,).
        products: X_c^T s X_c / S of the columns of W, packed by rows; empty while they are not known.
    """

    phase: LassoPhase = LassoPhase.LOOK
    is_sparse: bool = False
    is_rough: bool = False
    is_narrow: bool = False
    num_rows: float = 0.0
    total_weight: float = 0.0
    target_mean: float = 0.0
    primal: float = np.inf
    gap: float = np.inf
    share: float = FIRST_SHARE
    num_solved: int = 0
    num_refused: int = 0
    turn: int = 0
    means: Array
    norms: Array
    slopes: Array
    change: Array
    columns: Numbers
    products: Array

    @classmethod
    def fresh(cls, d: int, *, is_sparse: bool, is_rough: bool, is_narrow: bool) -> "LassoState":
        """Before the first pass over rows of `d` features."""
        zeros = np.zeros(d)
        return cls(
            is_sparse=is_sparse,
            is_rough=is_rough,
            is_narrow=is_narrow,
            means=zeros,
            norms=zeros,
            slopes=zeros,
            change=zeros,
            columns=np.arange(d if is_narrow else 0),
            products=NOTHING,
        )

    @property
    def d(self) -> int:
        """Features."""
        return len(self.means)

    @property
    def needs_products(self) -> bool:
        """Whether this pass sums up products of columns."""
        is_first = self.phase is LassoPhase.EVALUATE and self.is_narrow and not len(self.products)
        return is_first or self.phase is LassoPhase.MULTIPLY

    @property
    def has_last_word(self) -> bool:
        """Whether the next solution is for the duals alone, because w has no room for its digits: every other one."""
        return self.num_refused >= PATIENCE and (self.num_refused - PATIENCE) % 2 == 0

    def set_columns(self, columns: Array) -> None:
        """Another working set, whose products are not known yet."""
        self.columns = columns
        self.forget_products()

    def set_products(self, products: Array) -> None:
        """They are known from now on."""
        self.products, self.num_solved = products, 0

    def forget_products(self) -> None:
        """They are of other rows or columns, or not good enough."""
        self.set_products(NOTHING)

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, S, sum s y, sum s x (d), sum s x^2 (d, of wide data)
        EVALUATE:  HEAD, sum s r, sum s r^2, sum s r y_c, sum s r x (d), sum s x x^T (packed, where it needs products)
        MULTIPLY:  HEAD, sum s x x^T of W (packed)
        SOLVE:     HEAD, whether it was solved, whether the solution was found, weights of W (h)
        REST:      HEAD
        """
        d, h = self.d, len(self.columns)
        products = h * (h + 1) // 2 if self.needs_products else 0
        if self.phase is LassoPhase.LOOK:
            return HEAD + 2 + (d if self.is_narrow else 2 * d)
        if self.phase is LassoPhase.EVALUATE:
            return HEAD + 3 + d + products
        if self.phase is LassoPhase.MULTIPLY:
            return HEAD + products
        return HEAD + 2 + h if self.phase is LassoPhase.SOLVE else HEAD

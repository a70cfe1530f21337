"""What all tasks have in common while a multinomial regression runs, and the layout of the sums of a pass.

Notation of `objective`: K classes, d features, D = d + 1 with the intercept. Narrow data has a block of second
derivatives per class, wide data their diagonals.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import ROWS, ProgressState, nothing


class MultinomialPhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """Weights and features of each class; where W is 0, all that the first step needs."""
    EVALUATE = 1
    """Loss and gradient at the end of the direction, and second derivatives where there is a joint block."""
    BLOCKS = 2
    """Second derivatives of each class, for the preconditioner."""
    MULTIPLY = 3
    """The product of the second derivatives with a vector, for conjugate gradients."""
    REST = 4
    """Nothing: W is good enough, and a certificate follows."""


BY_CLASS = {ROWS: "num_classes"}


@dataclass(slots=True)
class MultinomialState(ProgressState):
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        num_classes, D: K and D.
        num_all_rows: Of the data set.
        is_joint: There is one block, of all K D weights: so little data that an exact step costs less than products do.
        is_narrow: Whether second derivatives of each class fit into a message; if not, their diagonals are summed up.
        block_rows: Rows of a block that are about enough, so that some are drawn where there are more; 0 for all.
        kept_products: Products of a run of conjugate gradients up to which the next one has the same blocks.
        is_rough: Second derivatives, which decide how fast it goes and not where it ends, are multiplied in float32, of
            dense rows that are no float64.
        is_cold: W is 0, so that all samples have the same probabilities.
        needs_blocks: Products are not begun before blocks are summed up again.
        num_rows: Rows that were looked at.
        block_serial: Number of the blocks that the preconditioner is made of.
        value: The objective at W, b; infinite where it is not known.
        gap: Duality gap there.
        share: Share of tol below which the run rests.
        reach: Share of the direction that is evaluated next; below 1 after the whole of it was too long.
        num_products: Products of this run of conjugate gradients.
        decrease: By how much the quadratic model has fallen in this run.
        rz, first_rz: Squared residual in the norm of the preconditioner, before the last and before the first product.
        num_stalls: Evaluations in a row that did not bring the objective down.
        totals: sum_i C_i y_i, shape (K,).
        masses: sum_i of the weights of each class in its block, as of the last evaluation, shape (K,).
        class_sums: sum_i C_i y_i x_i^T, shape (K, d).
        direction: Where to go from W, b, shape (K, D).
        residual: What conjugate gradients have left of the gradient, of a joint block all of it, shape (K, D).
        conjugate: Their last vector, shape (K, D).
        blocks: Second derivatives of each class, or where W is 0 of all classes about so: packed by rows, or their
            diagonals. For one pass only, in which each task makes factors of them.
    """

    phase: MultinomialPhase
    num_classes: int
    D: int
    num_all_rows: int
    is_joint: bool
    is_narrow: bool
    block_rows: int
    kept_products: int
    is_rough: bool
    is_cold: bool = False
    needs_blocks: bool = True
    num_rows: float = 0.0
    block_serial: int = 0
    value: float = np.inf
    gap: float = np.inf
    share: float = 0.5
    reach: float = 1.0
    num_products: int = 0
    decrease: float = 0.0
    rz: float = 0.0
    first_rz: float = 0.0
    num_stalls: int = 0
    totals: Array = field(default_factory=nothing)
    masses: Array = field(default_factory=nothing)
    class_sums: Array = field(default_factory=nothing, metadata=BY_CLASS)
    direction: Array = field(default_factory=nothing, metadata=BY_CLASS)
    residual: Array = field(default_factory=nothing, metadata=BY_CLASS)
    conjugate: Array = field(default_factory=nothing, metadata=BY_CLASS)
    blocks: Array = field(default_factory=nothing)

    def is_active(self, *, has_intercept: bool) -> Array:
        """Which classes have weight, shape (K,), bool; without intercepts those without one are like all others."""
        return self.totals > 0 if has_intercept else np.ones(self.num_classes, dtype=bool)

    def size_of_blocks(self, num_blocks: int) -> int:
        """Values of so many blocks, or of their diagonals."""
        if self.is_joint:
            size = self.num_classes * self.D
            return size * (size + 1) // 2
        return num_blocks * (self.D * (self.D + 1) // 2 if self.is_narrow else self.D)

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, sum C y (K), sum C y x^T (K d), and where W is 0 a block of sum C x x^T, or its diagonal
        EVALUATE:  HEAD, loss, entropy, second derivatives of the intercepts (K K), gradient (K D), and where there is a
                   joint block the direction (K D) and that block
        BLOCKS:    HEAD, K blocks
        MULTIPLY:  HEAD, tasks without a preconditioner, <r, z>, the vector p (K D), second derivatives times p (K D)
        REST:      HEAD
        """
        K, D = self.num_classes, self.D
        if self.phase is MultinomialPhase.LOOK:
            return HEAD + K * D + (self.size_of_blocks(1) if self.is_cold and not self.is_joint else 0)
        if self.phase is MultinomialPhase.EVALUATE:
            return HEAD + 2 + K * K + K * D + (K * D + self.size_of_blocks(1) if self.is_joint else 0)
        if self.phase is MultinomialPhase.BLOCKS:
            return HEAD + self.size_of_blocks(K)
        if self.phase is MultinomialPhase.MULTIPLY:
            return HEAD + 2 + 2 * K * D
        return HEAD

    def kept(self) -> tuple[str, ...]:
        """Return the vectors that go on to the next pass."""
        of_classes = () if self.phase is MultinomialPhase.LOOK else ("totals", "class_sums")
        return (*of_classes, *self._directions(), "blocks")

    def _directions(self) -> tuple[str, ...]:
        """Return the vectors of a phase that go on to the next pass."""
        if self.phase is MultinomialPhase.MULTIPLY:
            return ("direction", "residual", "conjugate")
        if self.phase is MultinomialPhase.BLOCKS:
            return ("residual", "masses")
        if self.phase is MultinomialPhase.EVALUATE and len(self.blocks):  # tasks find the direction themselves
            return ("residual",)
        return ("direction",) if self.phase is MultinomialPhase.EVALUATE else ()

"""What all tasks have in common while Newton's method runs: one `OutputState` per output.

D is num_features + 1, and h the number of columns of the block of second derivatives: all, some, or none yet.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.progress import Numbers, ProgressState, no_numbers, nothing


class NewtonPhase(IntEnum):
    """What the next pass does for an output."""

    EVALUATE = 0
    """Losses, gradient and second derivatives along the direction."""
    MULTIPLY = 1
    """A product of the second derivatives with a vector, for conjugate gradients."""
    REST = 2
    """Nothing: its gap is small enough, and that of others is not."""
    BALANCE = 3
    """Sums of the duals of both classes, which an intercept that is not penalised needs equal. Then it rests."""


class Block(IntEnum):
    """Which second derivatives an evaluation adds up."""

    KEPT = 0
    """None: factor and scale of the last ones are good enough."""
    SAMPLED = 1
    """Of a sample of the rows, see `NewtonPlan.row_step`."""
    ROUGH = 2
    """Of all rows, in float32 where the rows are dense."""
    EXACT = 3
    """Of all rows, in float64."""


@dataclass(slots=True)
class OutputState(ProgressState):
    """Where one output is.

    Attributes:
        phase: What the next pass does.
        gap: Relative gap of w and the duals that belong to it, as of the last evaluation; infinite before the first.
        value: The objective at w, of the smooth losses; infinite where it is not known.
        tau, next_tau: Proximal parameter of the present centers, and that of the next ones in case this pass is good
            enough to move them; in units of 1 / C_i. Of the hinge only.
        old_tau: Not 0 where the centers move before this pass, to the duals of w with this tau.
        serial: Steps taken so far.
        t: Share of its direction that the last step took; NaN where w came about in another way.
        num_inner: Newton steps since the centers moved.
        num_rejected: Directions along which nothing was good enough, since the centers moved or a step was taken.
        is_least_squares: No step was taken yet, and the first one is that of least squares.
        keeps_duals: The duals in the chunks were good enough from the beginning, and are not to be written.
        has_newton_duals: The output rests with the duals of one Newton step on, see `steps`.
        block: What the next evaluation adds up of the second derivatives.
        is_exact: The direction solves the Newton equations of w, but for rounding.
        bend: Second derivative of the losses along the gradient, by |gradient|^2.
        plus, minus: What duals of rows of the class of the output, and of others, are multiplied by when it rests.
        reach: Share of the last direction that was found which the present one is.
        damping: Share of the largest second derivatives that is added to those of the next block, because the direction
            before was much too long.
        num_products: Products of this run of conjugate gradients.
        length: Share of the vector of the last product that became part of the solution.
        rz: Squared residual of that run in the norm of the preconditioner.
        goal: Squared residual in the norm of the diagonal at which the run ends.
        direction: Where to go from w, shape (D,). At rest, from `point` to w that is certified.
        gradient: Of the objective at w, shape (D,), of the smooth losses.
        p, x, r, scale: Of conjugate gradients, shape (D,); scale is one over the square root of the diagonal.
        point: Where an output rests, shape (D,).
        factor: Cholesky factor of the block, see `preconditioner`.
        pairs: Vectors and products of the last run of conjugate gradients, see `pairs`; flat.
        met: Vectors and products of this run; flat.
        beside: Second derivatives of the losses by an intercept that is not penalised and each weight, shape (D,),
            as of the last block; empty without such an intercept.
        most: The largest diagonal that a block of all columns has had, shape (D,); of losses with kinks only.
        columns: Columns of the block, int64; empty for all.
    """

    phase: NewtonPhase = NewtonPhase.EVALUATE
    gap: float = np.inf
    value: float = np.inf
    tau: float = 0.0
    next_tau: float = 0.0
    old_tau: float = 0.0
    serial: int = 0
    t: float = 0.0
    num_inner: int = 0
    num_rejected: int = 0
    is_least_squares: bool = False
    keeps_duals: bool = False
    has_newton_duals: bool = False
    block: Block = Block.EXACT
    is_exact: bool = False
    bend: float = np.inf
    reach: float = 1.0
    damping: float = 0.0
    plus: float = 1.0
    minus: float = 1.0
    num_products: int = 0
    length: float = 0.0
    rz: float = 0.0
    goal: float = 0.0
    direction: Array = field(default_factory=nothing)
    gradient: Array = field(default_factory=nothing)
    p: Array = field(default_factory=nothing)
    x: Array = field(default_factory=nothing)
    r: Array = field(default_factory=nothing)
    scale: Array = field(default_factory=nothing)
    point: Array = field(default_factory=nothing)
    factor: Array = field(default_factory=nothing)
    pairs: Array = field(default_factory=nothing)
    met: Array = field(default_factory=nothing)
    beside: Array = field(default_factory=nothing)
    most: Array = field(default_factory=nothing)
    columns: Numbers = field(default_factory=no_numbers)

    def rest(self, w: Array, direction: Array) -> None:
        """The end of a direction is what is certified; `w`, shape (D,), becomes that."""
        self.phase, self.point, self.direction = NewtonPhase.REST, w.copy(), direction
        w += direction

    def kept(self) -> tuple[str, ...]:
        """Return the vectors of its phase."""
        is_kept = self.phase is NewtonPhase.EVALUATE and self.block is Block.KEPT
        return (*VECTORS[self.phase], "scale", "factor", "pairs") if is_kept else VECTORS[self.phase]


VECTORS = {
    NewtonPhase.EVALUATE: ("direction", "gradient", "beside", "most", "columns"),
    NewtonPhase.MULTIPLY: ("gradient", "p", "x", "r", "scale", "factor", "pairs", "met", "beside", "columns"),
    NewtonPhase.REST: ("direction", "point", "most"),
    NewtonPhase.BALANCE: ("direction", "point", "most"),
}
"""Which vectors of an output go on to the next pass."""


@dataclass(slots=True, kw_only=True)
class NewtonState(ProgressState):
    """Of all outputs.

    Attributes:
        block_columns, row_step, has_many_rows, is_cheap: See `NewtonPlan`.
        share: Share of tol below which an output rests.
        sums_size: Length of the sums of the next pass.
        outputs: By number.
    """

    block_columns: int
    row_step: int
    has_many_rows: bool
    is_cheap: bool
    share: float
    sums_size: int = 0
    outputs: list[OutputState]

    @property
    def is_at_rest(self) -> bool:
        """Whether no output has anything left to do."""
        return all(output.phase is NewtonPhase.REST for output in self.outputs)

"""What all tasks have in common while Newton's method runs, one `OutputState` per output, and where its sums lie.

D is num_features + 1, the intercept column included; theta, c_i and alpha are those of `losses`. A *block* has the
second derivatives in some columns or all of them, packed.

Sums of a pass, one vector: HEAD (see `pass_solver`), then of each output, by its phase

    LOOK:      sum c, sum c |y|, sum c y, sum c y^2
    EVALUATE:  see `Evaluation`
    MULTIPLY:  sum c f'' <x, p> x (D), p (D)
    REST:      nothing
"""

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, pairwise

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import Numbers, ProgressState, no_numbers, nothing
from chicle_elastic.solvers.linear.regression.losses import RegressionLoss

SCALARS = 11
"""Values that an evaluation begins with."""
FEW_ROWS = 1 << 12
"""Rows of the data up to which the losses along a direction cost a task that is alone less than another pass. With a
fourth of them regressions on 68 tables take 1 to 3 % more passes, in no less time."""
MOST_SCALARS = 1 << 7
"""Of a state of one output."""
SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.13, 0.08, 0.04, 0.02, 0.005, 0.001)
"""Shares of a direction whose losses a pass looks at."""
FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""


class NewtonPhase(IntEnum):
    """What the next pass sums up for an output."""

    LOOK = 0
    """How large targets are."""
    EVALUATE = 1
    """Losses, gradient and second derivatives at the end of the direction, and losses along it."""
    MULTIPLY = 2
    """The product of the second derivatives with `conjugate`."""
    REST = 3
    """Nothing: w is good enough, and a certificate follows once that is so for all outputs."""


class Block(IntEnum):
    """Which second derivatives an evaluation adds up."""

    KEPT = 0
    """None: the last ones are good enough."""
    SAMPLED = 1
    """Of a sample of the rows, see `NewtonState.row_step`."""
    ROUGH = 2
    """Of all rows, in float32 where the rows are dense."""
    EXACT = 3
    """Of all rows, in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised.

    Attributes:
        loss: The loss.
        tol: Relative gap to reach.
        alpha: Factor of 1/2 |w|^2.
        is_mean: The losses count as their mean and not as their sum.
        has_free_intercept: The last weight is not penalised.
        has_duals: The chunks have duals, from which w follows in the end; else targets are looked at first.
    """

    loss: RegressionLoss
    tol: float
    alpha: float = 1.0
    is_mean: bool = False
    has_free_intercept: bool = False
    has_duals: bool = False

    def strength(self, state: "NewtonState") -> float:
        """Alpha beside the sum of losses."""
        return self.alpha * (state.total if self.is_mean else 1.0)

    def ridge(self, state: "NewtonState") -> Array:
        """Second derivatives of the penalty, shape (D,)."""
        ridge = np.full(state.D, self.strength(state))
        ridge[-1] *= not self.has_free_intercept
        return ridge

    def eliminates_intercept(self, state: "NewtonState") -> bool:
        """Say whether conjugate gradients eliminate an intercept first: where no block may have its column."""
        return self.has_free_intercept and state.block_columns == 0

    def penalised(self, w: Array) -> Array:
        """w with 0 for a weight that is not penalised."""
        return np.append(w[:-1], 0.0) if self.has_free_intercept else w


@dataclass(slots=True, kw_only=True)
class OutputState(ProgressState):
    """Where one output is.

    Attributes:
        phase: What the next pass sums up.
        block: Which second derivatives the next evaluation adds up.
        is_first: No pass was made yet; the duals in the chunks may be good enough.
        keeps_duals: They are, and are not to be written.
        theta: Of the loss, above 0.
        change: By how much theta changes along the direction; the width of corners at its end.
        value: The objective with round corners at w; infinite where it is not known.
        gap: Relative duality gap; infinite where it is not known.
        dual: Largest D of slopes so far; they are the duals.
        dual_theta: The theta that these slopes had.
        is_best: The duals of the last evaluation have that D.
        reach: Share of the direction that was found which the present one is.
        slope: Of the objective along the direction.
        is_chosen: The direction has the length that the losses along it have told.
        is_searched: The direction is a part of one that was too long.
        damping: Share of the largest second derivatives so far that is added to the diagonal, because no share of a
            direction was good; of losses with kinks only.
        is_wary: A direction was too long, or is likely to be.
        steepness: What the gradient adds to the gap at w, with the slopes as duals.
        corners: What the corners add to it then.
        enough: The gap at which the output rests, not relative.
        is_refused: A certificate was not good enough, and no step was taken since.
        is_blind: The last step is so short that rounding hides what it did to the objective.
        plus, minus: What positive and negative slopes are multiplied by for duals that are feasible; 0 where that is
            not known.
        num_products: Products of this run of conjugate gradients.
        goal: Squared residual in the norm of the diagonal at which the run ends.
        direction: Where to go from w; grows with each product.
        shift: From w to where the duals are the slopes, which may be less than w has digits for.
        beside: Second derivatives by the intercept and each weight, as of the last evaluation.
        diagonal, factor: Of the preconditioner, see `Preconditioner`; a parabola has the factor of all columns. With
            kinks and exact steps, the largest diagonal so far.
        columns: Columns of the block, int64; empty for all, or for none where there is no room for all.
        residual, conjugate: Of conjugate gradients: what is left, and the vector to be multiplied. At rest, w as it was
            before another one was made of the duals.
        pairs: Vectors and products of the last run of conjugate gradients, see `pairs`; flat.
        met: Vectors and products of this run; flat.
    """

    phase: NewtonPhase = NewtonPhase.LOOK
    block: Block = Block.EXACT
    is_first: bool = True
    keeps_duals: bool = False
    theta: float = 1.0
    change: float = 0.0
    value: float = np.inf
    gap: float = np.inf
    dual: float = -np.inf
    dual_theta: float = 1.0
    is_best: bool = False
    reach: float = 1.0
    slope: float = 0.0
    is_chosen: bool = False
    is_searched: bool = False
    is_wary: bool = False
    damping: float = 0.0
    steepness: float = np.inf
    corners: float = 0.0
    enough: float = 0.0
    is_refused: bool = False
    is_blind: bool = False
    plus: float = 1.0
    minus: float = 1.0
    num_products: int = 0
    goal: float = 0.0
    direction: Array = field(default_factory=nothing)
    shift: Array = field(default_factory=nothing)
    beside: Array = field(default_factory=nothing)
    diagonal: Array = field(default_factory=nothing)
    factor: Array = field(default_factory=nothing)
    columns: Numbers = field(default_factory=no_numbers)
    residual: Array = field(default_factory=nothing)
    conjugate: Array = field(default_factory=nothing)
    pairs: Array = field(default_factory=nothing)
    met: Array = field(default_factory=nothing)

    def kept(self) -> tuple[str, ...]:
        """Return the vectors that the next pass, or a certificate, needs."""
        kept = "direction", "shift", "beside", "columns", "diagonal"
        if self.phase is NewtonPhase.MULTIPLY:
            return (*kept, "factor", "residual", "conjugate", "pairs", "met")
        if self.phase is NewtonPhase.REST:
            return (*kept, "residual")
        return (*kept, "factor", "pairs") if self.block is Block.KEPT else kept

    @property
    def step(self) -> Array:
        """The direction, the change of theta with it, and the slope: what a task has found with a factor of its own."""
        return np.concatenate([self.direction, [self.change, self.slope]])


@dataclass(slots=True, kw_only=True)
class NewtonState(ProgressState):
    """Of all outputs.

    Attributes:
        D: Columns, the intercept included.
        block_columns: Columns of a block at most.
        row_step: One row in so many counts for a block that is a preconditioner, so many times.
        is_exact: Steps come from the block, which has all columns and rows; else from conjugate gradients.
        is_rough: Second derivatives are summed up in float32, until that is not good enough.
        has_many_rows: A pass looks at the losses along a direction only after one that was too long.
        is_alone: There was one task in the last pass.
        num_rows: Rows that were looked at first; 0 before.
        passes: How many the next iteration has if there is one task; with more than 1 its update has room for the w and
            the state that they lead to.
        total: Sum of the c_i.
        typical: Mean size of the targets, by weight; 1 where all are 0.
        floor: What the objective counts as at least: less is rounding of the targets.
        share: Share of tol below which an output rests.
        outputs: By number.
    """

    D: int
    block_columns: int
    row_step: int = 1
    is_exact: bool = True
    is_rough: bool = False
    has_many_rows: bool = False
    is_alone: bool = False
    num_rows: float = 0.0
    passes: int = 1
    total: float = 1.0
    typical: float = 1.0
    floor: float = TINY
    share: float = FIRST_SHARE
    outputs: list[OutputState]

    @property
    def is_at_rest(self) -> bool:
        """Whether no output has anything left to do."""
        return all(output.phase is NewtonPhase.REST for output in self.outputs)

    @property
    def gap(self) -> float:
        """The largest relative gap of all outputs."""
        return max([output.gap for output in self.outputs])

    @property
    def first_block(self) -> Block:
        """Which second derivatives are added up at first."""
        return Block.SAMPLED if self.row_step > 1 else Block.ROUGH if self.is_rough else Block.EXACT

    @property
    def has_all_columns(self) -> bool:
        """Whether a block has all columns."""
        return self.block_columns >= self.D

    @property
    def room(self) -> int:
        """Values that a later state may take of one that has neither blocks nor pairs."""
        return MOST_SCALARS + 6 * self.D * len(self.outputs)

    @property
    def has_newton_duals(self) -> bool:
        """Whether outputs rest with duals of which another w is made."""
        return self.is_at_rest and any(output.shift.any() for output in self.outputs)

    def sums_size(self, problem: Problem) -> int:
        """Length of the sums of the next pass."""
        return HEAD + sum(self._size(output, problem) for output in self.outputs)

    def parts(self, sums: Array, problem: Problem) -> list[Array]:
        """Views of the sums of each output."""
        ends = list(accumulate((HEAD, *(self._size(output, problem) for output in self.outputs))))
        return [sums[begin:end] for begin, end in pairwise(ends)]

    def _size(self, output: OutputState, problem: Problem) -> int:
        if output.phase is NewtonPhase.LOOK:
            return 4
        if output.phase is NewtonPhase.EVALUATE:
            return sum(Evaluation.sizes(self, output, problem))
        return 2 * self.D if output.phase is NewtonPhase.MULTIPLY else 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums of c_i times what is said.

    Attributes:
        scalars: Round losses; losses; these less duals and scores (`dual_values`) of duals; positive duals; negative
            ones; first and second derivatives by a scale; with corners, round losses of the width before, and losses
            less duals and scores of slopes; of a first pass with duals in the chunks, their dual values, and they
            times the targets. Shape (SCALARS,).
        v: Slopes times rows, shape (D,).
        of_duals: Duals times rows with corners, shape (D,); else empty, as the duals are the slopes.
        second: Curvatures times x x^T in the columns of the block, packed; empty where it is kept.
        diagonal: Curvatures times x^2, shape (D,); empty where the block has all columns, or is kept.
        beside: Curvatures times rows, where there is a free intercept; else empty, and as above.
        mixed: Derivatives by scale and score, times rows, where there is a scale; else empty.
        line: Losses at each of SHARES of the direction, with the corners of its beginning; or empty.
        step: Of each task; their mean counts (see `agreement`). Shape (D + 2,).
    """

    scalars: Array
    v: Array
    of_duals: Array
    second: Array
    diagonal: Array
    beside: Array
    mixed: Array
    line: Array
    step: Array

    @staticmethod
    def sizes(state: NewtonState, output: OutputState, problem: Problem) -> tuple[int, ...]:
        """Return the lengths of all of them."""
        D, loss, is_kept = state.D, problem.loss, output.block is Block.KEPT
        h = 0 if is_kept else D if state.has_all_columns else len(output.columns)
        diagonal = 0 if is_kept or state.has_all_columns else D
        has_line = (output.direction.any() or output.change) and not output.is_chosen
        is_cheap = state.num_rows <= FEW_ROWS or not (state.has_many_rows or state.is_alone)  # beside another pass
        has_line = has_line and (output.is_searched or (output.is_wary and is_cheap))
        return (
            SCALARS,
            D,
            D * loss.has_corners,
            h * (h + 1) // 2,
            diagonal,
            diagonal * problem.has_free_intercept,
            D * loss.has_scale,
            len(SHARES) * bool(has_line),
            D + 2,
        )

    @classmethod
    def of(cls, state: NewtonState, output: OutputState, problem: Problem, part: Array) -> "Evaluation":
        """Views of the sums of an output."""
        ends = list(accumulate((0, *cls.sizes(state, output, problem))))
        return cls(*(part[begin:end] for begin, end in pairwise(ends)))

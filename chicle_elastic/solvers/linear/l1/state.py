"""What all tasks have in common while a model with an l1 penalty is fitted, and the layout of the sums of a pass.

D is num_features + 1, the intercept column included. After HEAD (see `pass_solver`) and, while all outputs look, sums
of C_i x_i (D) and C_i x_i^2 (D), the sums of each output are, by its phase

    LOOK:      step (D); sums of C_i of its class, and of the others; of real targets sums of weights, and of products
    EVALUATE:  step (D); the sums that `Objective.scaled` takes; products of all columns, packed, where `needs_products`
    MULTIPLY:  products of the columns of the working set, packed
    COLUMNS:   the direction (D)
    REST:      nothing
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import PATIENCE, ROUNDING, TINY
from chicle_elastic.solvers.linear.newton.state import FIRST_SHARE, NewtonPhase, PassState
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import Numbers, ProgressState, no_numbers, nothing


@dataclass(slots=True, kw_only=True)
class L1Output(ProgressState):
    """Where one output is."""

    phase: NewtonPhase = NewtonPhase.LOOK  # what the next pass does
    value: float = np.inf  # the objective at w; infinite where it is not known
    # relative duality gap at w, as far as the last evaluation can tell; infinite where it is not known
    gap: float = np.inf
    # plus, minus: what positive and negative slopes are multiplied by for duals that are feasible; 0 where that is not
    # known
    plus: float = 0.0
    minus: float = 0.0
    reach: float = 0.0  # share of the direction that was found which the present one is; 0 for one that is taken unseen
    # share of the largest possible curvature that is added to the second derivatives, because the direction before was
    # much too long; the model then trusts w more
    damping: float = 0.0
    num_solved: int = 0  # directions found since the beginning, or since a certificate was not good enough
    num_still: int = 0  # steps in a row that lowered neither the objective nor the gap
    is_rough: bool = False  # products are summed up in float32
    slopes: Array = field(default_factory=nothing)  # sum_i a_i x_i of the slopes a_i at w, shape (D,)
    # where to go from w, shape (D,). At rest from w to where the duals are the slopes, which may be less than w has
    # digits for
    direction: Array = field(default_factory=nothing)
    # the working set W, ascending, shape (h,); empty where it always has all columns
    columns: Numbers = field(default_factory=no_numbers)
    # second derivatives in the columns of W, packed by rows; kept for the squared loss alone
    products: Array = field(default_factory=nothing)


@dataclass(slots=True, kw_only=True)
class L1State(PassState):
    """Of all outputs."""

    is_whole: bool  # W always has all columns
    is_parabola: bool  # the loss is the squared one: second derivatives are the same everywhere
    has_columns: bool = False  # a task that is alone solves from the columns of its rows, without products
    is_alone: bool = False  # there was one task in the last pass
    num_sides: int  # of the objective
    D: int  # columns, the intercept included
    num_rows: float = 0.0  # rows that were looked at first
    share: float = FIRST_SHARE  # share of tol below which an output rests
    num_refused: int = 0  # certificates that were not good enough
    total: float = 1.0  # sum of the weights of a squared loss, which its C_i are divided by; else 1
    target_mean: float = 0.0  # weighted mean of real targets; 0 without a free intercept
    # those of the columns of a squared loss with a free intercept, shape (D,); else zeros
    means: Array = field(default_factory=nothing)
    # lengths of the columns, rows weighted by C_i, and less their means, shape (D,); zeros where W has all columns of a
    # squared loss
    norms: Array = field(default_factory=nothing)
    outputs: list[L1Output]  # by number

    @property
    def floor(self) -> float:
        """Return what P counts as at least: constant targets leave rounding."""
        return max(ROUNDING * self.target_mean**2, TINY)

    @property
    def has_last_word(self) -> bool:
        """Say whether the next solution is for the duals alone, as w has no room for its digits: every other one."""
        return self.is_parabola and self.num_refused >= PATIENCE and (self.num_refused - PATIENCE) % 2 == 0

    @property
    def is_looking(self) -> bool:
        """Whether the next pass looks at the data; all outputs do so together."""
        return self.outputs[0].phase is NewtonPhase.LOOK

    @property
    def evaluation_size(self) -> int:
        """Length of the sums of an evaluation."""
        return self.num_sides * (2 + self.D)

    def needs_products(self, output: L1Output) -> bool:
        """Say whether an evaluation brings the products of all columns."""
        return self.is_whole and not len(output.products)

    def _head_size(self) -> int:
        return HEAD + 2 * self.D * self.is_looking

    def _size(self, output: L1Output, problem: Any) -> int:
        h = len(output.columns) or self.D
        if output.phase is NewtonPhase.LOOK:
            return self.D + 2
        if output.phase is NewtonPhase.EVALUATE:
            return self.D + self.evaluation_size + self.needs_products(output) * h * (h + 1) // 2
        if output.phase is NewtonPhase.MULTIPLY:
            return h * (h + 1) // 2
        return self.D if output.phase is NewtonPhase.COLUMNS else 0

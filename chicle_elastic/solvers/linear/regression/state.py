"""What all tasks have in common while a regression runs, and the layout of the sums of a pass.

D is num_features + 1, the intercept column included; theta, c_i and alpha are those of `losses`.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, pairwise

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import ProgressState, nothing

SCALARS = 9
"""Values that an evaluation begins with."""
SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.13, 0.08, 0.04, 0.02, 0.005, 0.001)
"""Shares of a direction that a pass looks at."""
FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""


class RegressionPhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """How large targets are."""
    EVALUATE = 1
    """Losses, gradient and second derivatives at the end of the direction."""
    MULTIPLY = 2
    """The product of the second derivatives with `conjugate`."""
    SEARCH = 3
    """Losses along a direction that was too long."""
    REST = 4
    """Nothing: w is good enough, and a certificate follows."""


@dataclass(slots=True, kw_only=True)
class RegressionState(ProgressState):
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        has_factor: There is room for all second derivatives.
        is_parabola: Second derivatives are the same everywhere, and kept.
        is_rough: They are summed up in float32, and products repair what that does.
        has_products: Of a parabola: they are known.
        has_scale: theta is minimised over, too.
        has_corners: Of the loss; the tasks remember the duals that the last step has foretold.
        has_free_intercept: The last weight is not penalised.
        num_rows: Rows that were looked at first.
        passes: How many the next iteration has if there is one task; with more than 1 its update has room for the w and
            the state that they lead to.
        total: Sum of the c_i.
        typical: Mean size of the targets, by weight; 1 where all are 0.
        theta: Of the loss, above 0.
        change: By how much theta changes along the direction; the width of corners at its end.
        floor: What the objective counts as at least: less is rounding of the targets.
        value: The objective with round corners at w.
        gap: Relative duality gap; infinite where it is not known.
        dual: Largest D of slopes so far; they are the duals.
        dual_theta: The theta that these slopes had.
        is_best: The duals of the last evaluation have that D.
        share: Share of tol below which the run rests.
        reach: Factor of `SHARES`: 1, or less where all of them were too long.
        slope: Of the objective along the direction.
        is_chosen: The direction has the length that a search has found.
        is_wary: The last direction was too long, and the next one is searched along at once.
        steepness: What the gradient adds to the gap at w, with the slopes as duals.
        corners: What the corners add to it then.
        enough: The gap at which the run rests, not relative.
        is_refused: A certificate was not good enough, and no step was taken since.
        is_blind: The last step is so short that rounding hides what it did to the objective.
        plus, minus: What positive and negative slopes are multiplied by for duals that are feasible; 0 where that is
            not known.
        num_products: Products of this run of conjugate gradients.
        goal: At what the run ends: of a parabola the gap, else the squared residual in the norm of the diagonal.
        direction: Where to go from w; grows with each product.
        shift: From w to where the duals are the slopes, which may be less than w has digits for.
        beside: Second derivatives by the intercept and each weight, as of the last evaluation.
        scale: One over the diagonal of the second derivatives, or of a parabola's with a factor the root of that.
        factor: Cholesky factor of the second derivatives of a parabola, scaled, packed; empty while it is not known.
        residual, conjugate: Of conjugate gradients: what is left, and the vector to be multiplied.
    """

    phase: RegressionPhase = RegressionPhase.LOOK
    has_factor: bool = False
    is_parabola: bool = False
    is_rough: bool = False
    has_products: bool = False
    has_scale: bool = False
    has_corners: bool = False
    has_free_intercept: bool = False
    num_rows: float = 0.0
    passes: int = 1
    total: float = 1.0
    theta: float = 1.0
    typical: float = 1.0
    change: float = 0.0
    floor: float = TINY
    value: float = np.inf
    gap: float = np.inf
    dual: float = -np.inf
    dual_theta: float = 1.0
    is_best: bool = False
    share: float = FIRST_SHARE
    num_products: int = 0
    reach: float = 1.0
    slope: float = 0.0
    is_chosen: bool = False
    is_wary: bool = False
    steepness: float = np.inf
    corners: float = 0.0
    enough: float = 0.0
    is_refused: bool = False
    is_blind: bool = False
    plus: float = 1.0
    minus: float = 1.0
    goal: float = 0.0
    direction: Array
    shift: Array
    beside: Array
    scale: Array
    factor: Array = field(default_factory=nothing)
    residual: Array
    conjugate: Array

    @classmethod
    def fresh(
        cls,
        D: int,
        *,
        has_factor: bool,
        has_scale: bool = False,
        has_corners: bool = False,
        has_free_intercept: bool = False,
        is_parabola: bool = False,
        is_rough: bool = False,
    ) -> "RegressionState":
        """Before the first pass over rows of D columns."""
        zeros = np.zeros(D)
        return cls(
            has_factor=has_factor,
            is_parabola=is_parabola,
            is_rough=is_rough,
            has_scale=has_scale,
            has_corners=has_corners,
            has_free_intercept=has_free_intercept,
            plus=0.0 if has_free_intercept and not is_parabola else 1.0,
            minus=0.0 if has_free_intercept and not is_parabola else 1.0,
            direction=zeros,
            shift=zeros,
            beside=zeros,
            scale=zeros,
            residual=zeros,
            conjugate=zeros,
        )

    def kept(self) -> tuple[str, ...]:
        """See `ProgressState`: what conjugate gradients need is left out where a step comes from a factor alone."""
        is_short = self.has_factor and not self.is_parabola
        return ("direction", "shift") if is_short else super(RegressionState, self).kept()

    @property
    def needs_products(self) -> bool:
        """Say whether an evaluation sums up second derivatives."""
        return not (self.is_parabola and self.has_products)

    @property
    def step(self) -> Array:
        """The direction, the change of theta with it, and the slope: what a task has found with a factor of its own."""
        return np.concatenate([self.direction, [self.change, self.slope]])

    def evaluation(self, sums: Array) -> "Evaluation":
        """Views of the sums of this pass, without HEAD, in phase EVALUATE."""
        return Evaluation.of(self, sums)

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, sum c, sum c |y|, sum c y, sum c y^2
        EVALUATE:  HEAD, see `Evaluation`
        MULTIPLY:  HEAD, sum c f'' <x, p> x (D), p (D)
        SEARCH:    HEAD, losses with round corners at each of SHARES, `step` (D + 2)
        REST:      HEAD
        """
        D = len(self.direction)
        if self.phase is RegressionPhase.LOOK:
            return HEAD + 4
        if self.phase is RegressionPhase.EVALUATE:
            return HEAD + SCALARS + sum(Evaluation.sizes(self))
        if self.phase is RegressionPhase.MULTIPLY:
            return HEAD + 2 * D
        return HEAD + (len(SHARES) + D + 2 if self.phase is RegressionPhase.SEARCH else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Sums of c_i times what is said.

    Attributes:
        scalars: Round losses; losses; these less duals and scores (`dual_values`) of duals; positive duals; negative
            ones; first and second derivatives by a scale; with corners, round losses of the width before, and losses
            less duals and scores of slopes. Shape (SCALARS,).
        v: Slopes times rows, shape (D,).
        of_duals: Duals times rows with corners, shape (D,); else empty, as the duals are the slopes.
        second: Curvatures times x x^T (packed), where there is a factor, else its diagonal (D); empty where those of a
            parabola are known.
        beside: Curvatures times rows, where there is a free intercept and no factor; else empty, and as above.
        mixed: Derivatives by scale and score, times rows, where there is a scale; else empty.
        step: Of each task; their mean counts (see `agreement`). Shape (D + 2,).
    """

    scalars: Array
    v: Array
    of_duals: Array
    second: Array
    beside: Array
    mixed: Array
    step: Array

    @staticmethod
    def sizes(state: RegressionState) -> tuple[int, int, int, int, int, int]:
        """Return the lengths of all but the scalars."""
        D = len(state.direction)
        second = D * (D + 1) // 2 if state.has_factor else D
        has_beside = state.has_free_intercept and not state.has_factor
        beside, mixed = D if has_beside else 0, D if state.has_scale else 0
        return D, D * state.has_corners, second * state.needs_products, beside * state.needs_products, mixed, D + 2

    @classmethod
    def of(cls, state: RegressionState, sums: Array) -> "Evaluation":
        """Views of the sums of a pass, without HEAD."""
        ends = list(accumulate((0, SCALARS, *cls.sizes(state))))
        scalars, v, of_duals, second, beside, mixed, step = (sums[a:b] for a, b in pairwise(ends))
        return cls(scalars=scalars, v=v, of_duals=of_duals, second=second, beside=beside, mixed=mixed, step=step)

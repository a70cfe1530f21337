"""What all tasks have in common while a support vector regression runs, and the layout of the sums of a pass.
D is num_features + 1, the intercept column included.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.progress import ProgressState

HEAD = 2
"""Values that every sum begins with: tasks that were interrupted; rows read."""
SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.13, 0.08, 0.04, 0.02, 0.005, 0.001)
"""Shares of a direction that a pass looks at."""
FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""


class SvrPhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """How large targets are."""
    EVALUATE = 1
    """Losses, gradient and second derivatives at w."""
    MULTIPLY = 2
    """The product of the second derivatives with a vector, for conjugate gradients."""
    SEARCH = 3
    """Losses along the direction."""
    REST = 4
    """Nothing: w is good enough, and a certificate follows."""


@dataclass(slots=True, kw_only=True)
class SvrState(ProgressState):
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        has_factor: There is room for all second derivatives.
        num_rows: Rows that were looked at first.
        width, least_width: Of the round corner; not 0. It does not become smaller than the second.
        floor: What the objective counts as at least: less is rounding of the targets.
        value: The objective with round corners at w.
        gap: Relative duality gap at w; infinite where it is not known.
        share: Share of tol below which the run rests.
        reach: Factor of `SHARES`: 1, or less where all of them were too long.
        steepness: 1/2 |gradient|^2 at w.
        is_blind: The last step is so short that rounding hides what it did to the objective.
        num_products: Products of this run of conjugate gradients.
        goal: Squared residual at which that run ends, in the norm of the diagonal.
        direction: Where to go from w; grows with each product.
        scale: One over the diagonal of the second derivatives.
        residual, conjugate: Of conjugate gradients: what is left, and the vector to be multiplied.
    """

    phase: SvrPhase = SvrPhase.LOOK
    has_factor: bool = False
    num_rows: float = 0.0
    width: float = 1.0
    least_width: float = 0.0
    floor: float = TINY
    value: float = np.inf
    gap: float = np.inf
    share: float = FIRST_SHARE
    num_products: int = 0
    reach: float = 1.0
    steepness: float = np.inf
    is_blind: bool = False
    goal: float = 0.0
    direction: Array
    scale: Array
    residual: Array
    conjugate: Array

    @classmethod
    def fresh(cls, D: int, *, has_factor: bool) -> "SvrState":
        """Before the first pass over rows of D columns."""
        zeros = np.zeros(D)
        return cls(has_factor=has_factor, direction=zeros, scale=zeros, residual=zeros, conjugate=zeros)

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, sum C |y|, sum C
        EVALUATE:  HEAD, losses with round corners, losses, dual values, sum a x (D), and of c x x^T all (packed) where
                   there is a factor, else the diagonal (D)
        MULTIPLY:  HEAD, sum c <x, p> x (D), p (D)
        SEARCH:    HEAD, losses with round corners at each of SHARES, the direction (D)
        REST:      HEAD
        """
        D = len(self.direction)
        if self.phase is SvrPhase.LOOK:
            return HEAD + 2
        if self.phase is SvrPhase.EVALUATE:
            return HEAD + 3 + D + (D * (D + 1) // 2 if self.has_factor else D)
        if self.phase is SvrPhase.MULTIPLY:
            return HEAD + 2 * D
        return HEAD + (len(SHARES) + D if self.phase is SvrPhase.SEARCH else 0)

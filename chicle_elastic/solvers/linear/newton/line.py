"""Along the direction of a step: what makes it good enough, and which share of it to look at next."""

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.plan import GRID

ARMIJO = 1e-4
ROUNDING = 1e-13
"""Relative change of the objective that is none."""


def where_slope_is_0(slopes: Array, along: float, length: float, slope: float) -> float:
    """Share of the direction to look at next, as no candidate was good enough.

    Args:
        slopes: Of the losses at the shares of GRID.
        along, length: <w, direction> and |direction|^2.
        slope: Of the objective at w.

    Slopes rise along the line; where a straight line between the two around 0 is 0, not too near to either.
    """
    t_before, before = 0.0, slope
    for t, rows in zip(GRID.tolist(), slopes.tolist(), strict=True):
        here = along + t * length + rows
        if here > 0:
            return t_before + (t - t_before) * min(max(before / (before - here), 0.1), 0.9)
        t_before, before = t, here
    return t_before

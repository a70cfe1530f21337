"""Rows that hold uni-tasks against the best number of micro-tasks, or one number of tasks against the next one."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Bar, Row

TASKS = (16, 24, 32, 64)
CURVES = 2  # place of the speed of changes whose curves are drawn
RAMPS = {"in": (16, 2), "out": (2, 16)}
EACH, MEAN = 1.02, 0.9
"""Time by uni-tasks, at most, over that of the best number of micro-tasks: in every setting, and on average."""


def uni_row(
    part: str,
    what: str,
    unit: str,
    reached: Mapping[str, float],
    *,
    gap: float | None = None,
    gate: float = EACH,
    **details: Any,
) -> Row:
    """Time by uni-tasks over that of the best number of micro-tasks; 0 where only uni-tasks came to the end.

    Args:
        part: Figure.
        what: Of the row.
        unit: Of time.
        reached: When the goal was, by "uni" and by each number of micro-tasks.
        gap: The goal, where it is one.
        gate: The ratio, at most.
        details: Of the row.
    """
    uni, micro = reached["uni"], {side: time for side, time in reached.items() if side != "uni"}
    best = min(micro, key=lambda count: micro[count])
    others = ", ".join(f"{count}: {value:.4g}" for count, value in micro.items())
    return Row(
        part=part,
        what=what,
        tol=gap,
        measured=f"{uni:.4g} {unit}",
        against=f"{micro[best]:.4g} with {best} micro-tasks ({others})",
        value=uni / micro[best] if math.isfinite(micro[best]) else (0.0 if math.isfinite(uni) else math.nan),
        bar=Bar(gate=gate, at_most=True),
        details={**details, "reached": dict(reached)},
    )


def mean_rows(part: str, what: str, found: Sequence[Row]) -> list[Row]:
    """The mean of all settings; none where there are none."""
    ratios = [row.value for row in found if row.value is not None and math.isfinite(row.value)]
    if not ratios:
        return []
    mean = fmean(ratios)
    return [Row(part, what, None, f"{mean:.3f}", f"{len(ratios)} settings", mean, Bar(gate=MEAN, at_most=True))]


def growth_row(what: str, gap: float | None, epochs: Mapping[int, float], *, by: str, **details: Any) -> Row:
    """Epochs by number of tasks, or another measure of parallelism; the bar is that they never fall."""
    rises = [after / before for before, after in pairwise(epochs.values()) if math.isfinite(after)]
    return Row(
        part="fig1",
        what=f"{what}: epochs by {by}",
        tol=gap,
        measured=", ".join(f"{count}: {value:.4g}" for count, value in epochs.items()),
        against="never fewer with more",
        value=min(rises, default=math.nan),
        bar=Bar(gate=1.0),
        details={"epochs": dict(epochs), "by": by, **details},
    )

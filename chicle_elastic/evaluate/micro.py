"""Rows that hold uni-tasks against the best number of micro-tasks, or one number of tasks against the next one."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Bar, Row

TASKS = (16, 24, 32, 64)
RAMPS = {"in": (16, 2), "out": (2, 16)}
EACH, MEAN = 1.02, 0.9
"""Time by uni-tasks, at most, over that of the best number of micro-tasks: in every setting, and on average."""


def uni_row(
    part: str,
    what: str,
    unit: str,
    uni: float,
    micro: Mapping[int, float],
    *,
    gap: float | None = None,
    gate: float = EACH,
    **details: Any,
) -> Row:
    """Time by uni-tasks over that of the best number of micro-tasks; 0 where only uni-tasks came to the end."""
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
        details={**details, "uni": uni, "micro": dict(micro)},
    )


def mean_rows(part: str, what: str, found: Sequence[Row]) -> list[Row]:
    """The mean of all settings; none where there are none."""
    ratios = [row.value for row in found if row.value is not None and math.isfinite(row.value)]
    if not ratios:
        return []
    mean = fmean(ratios)
    return [Row(part, what, None, f"{mean:.3f}", f"{len(ratios)} settings", mean, Bar(gate=MEAN, at_most=True))]


def growth_row(part: str, what: str, gap: float | None, epochs: Mapping[int, float], **details: Any) -> Row:
    """Epochs by number of tasks; the bar is that they never fall."""
    rises = [after / before for before, after in pairwise(epochs.values()) if math.isfinite(after)]
    return Row(
        part=part,
        what=f"{what}: epochs by tasks",
        tol=gap,
        measured=", ".join(f"{count}: {value:.4g}" for count, value in epochs.items()),
        against="never fewer with more tasks",
        value=min(rises, default=math.nan),
        bar=Bar(gate=1.0),
        details={"epochs": dict(epochs), **details},
    )

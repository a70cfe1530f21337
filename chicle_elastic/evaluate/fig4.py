"""Figures 4 and 9 of the paper: nodes come or go while a job runs, uni-tasks against every number of micro-tasks.

Figure 4 is over projected time, figure 9 over epochs; `fig4_images` has local SGD.
"""

from functools import partial
from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.micro import CURVES, RAMPS, TASKS, mean_rows, uni_row
from chicle_elastic.evaluate.projection import Ramp, changes, ends, micro_units, time_to, uni_units
from chicle_elastic.evaluate.runs import Problem, Settings, gaps, problems

SPEEDS = (2.0, 5.0, 10.0, 20.0, 40.0)
"""Units between two changes, of two nodes each."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set, direction, speed and gap; and their mean."""
    found = [
        _row(settings, problem, direction, Ramp(first, last, every), gap)
        for problem in problems(settings, notes)
        for direction, (first, last) in RAMPS.items()
        for every in SPEEDS
        for gap in problem.gaps
    ]
    return found + mean_rows("fig4", "CoCoA: mean of all settings that a number of micro-tasks finished", found)


def _row(settings: Settings, problem: Problem, direction: str, ramp: Ramp, gap: float) -> Row:
    plan = changes(ramp, uni_units, problem.most)
    runs = {"uni": gaps(settings, problem, num_tasks=ramp.first, changes=plan)}
    times = {"uni": ends(ramp, uni_units, problem.most)}
    for count in TASKS:
        runs[str(count)] = gaps(settings, problem, num_tasks=count)
        times[str(count)] = ends(ramp, partial(micro_units, count), problem.most)
    reached = {side: fmean(time_to(gap, run, times[side]) for run in of) for side, of in runs.items()}
    details: dict[str, Any] = {"direction": direction, "every": ramp.every, "panel": f"CoCoA, {problem.data.title}"}
    if ramp.every == SPEEDS[CURVES] and gap == problem.gaps[0]:
        details["curves"] = {
            side: [
                [(n, time, value) for n, (time, value) in enumerate(zip(times[side], run, strict=False), 1)]
                for run in of
            ]
            for side, of in runs.items()
        }
    what = f"CoCoA, {problem.data.title}, {ramp.first} to {ramp.last} nodes, 2 every {ramp.every:g} units"
    return uni_row("fig4", what, "units", reached, goal=f"gap {gap:g}", gap=gap, **details)

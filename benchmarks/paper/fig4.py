"""Figures 4 and 9 of the paper: nodes come or go while a job runs, uni-tasks against every number of micro-tasks."""

import math
from functools import partial
from statistics import fmean

from benchmarks.bars import Bar, Row
from benchmarks.paper.projection import Ramp, changes, ends, micro_units, time_to, uni_units
from benchmarks.paper.runs import Problem, Settings, gaps, problems

TASKS = (16, 24, 32, 64)
SPEEDS = (2.0, 5.0, 10.0, 20.0, 40.0)
"""Units between two changes, of two nodes each."""
RAMPS = {"in": (16, 2), "out": (2, 16)}
EACH, MEAN = 1.02, 0.9
"""Time by uni-tasks, at most, over that of the best number of micro-tasks: in every setting, and on average."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set, direction, speed and gap; and their mean."""
    found, ratios = [], []
    for problem in problems(settings, notes):
        for direction, (first, last) in RAMPS.items():
            for every in SPEEDS:
                ramp = Ramp(first, last, every)
                for gap in problem.gaps:
                    row = _row(settings, problem, direction, ramp, gap)
                    found.append(row)
                    if row.value is not None and math.isfinite(row.value):
                        ratios.append(row.value)
    if ratios:
        found.append(
            Row(
                part="fig4",
                what="mean of all settings that a number of micro-tasks finished",
                tol=None,
                measured=f"{fmean(ratios):.3f}",
                against=f"{len(ratios)} settings",
                value=fmean(ratios),
                bar=Bar(gate=MEAN, at_most=True),
                details={},
            )
        )
    return found


def _row(settings: Settings, problem: Problem, direction: str, ramp: Ramp, gap: float) -> Row:
    plan = changes(ramp, uni_units, problem.most)
    times = ends(ramp, uni_units, problem.most)
    uni = fmean(
        time_to(gap, gaps(settings, problem, num_tasks=ramp.first, changes=plan, seed=seed), times)
        for seed in settings.seeds
    )
    micro = {}
    for count in TASKS:
        times = ends(ramp, partial(micro_units, count), problem.most)
        micro[count] = fmean(
            time_to(gap, gaps(settings, problem, num_tasks=count, seed=seed), times) for seed in settings.seeds
        )
    best = min(micro, key=lambda count: micro[count])
    others = ", ".join(f"{count}: {value:.4g}" for count, value in micro.items())
    ratio = uni / micro[best] if math.isfinite(micro[best]) else (0.0 if math.isfinite(uni) else math.nan)
    return Row(
        part="fig4",
        what=f"{problem.data.title}, {ramp.first} to {ramp.last} nodes, 2 every {ramp.every:g} units",
        tol=gap,
        measured=f"{uni:.4g} units",
        against=f"{micro[best]:.4g} with {best} micro-tasks ({others})",
        value=ratio,
        bar=Bar(gate=EACH, at_most=True),
        details={"direction": direction, "every": ramp.every, "uni": uni, "micro": micro},
    )

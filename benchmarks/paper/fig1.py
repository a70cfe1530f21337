"""Figure 1 of the paper: epochs to a gap against the number of tasks. More tasks need more epochs."""

import math
from itertools import pairwise
from statistics import fmean

from benchmarks.bars import Bar, Row
from benchmarks.paper.runs import Settings, gaps, problems

TASKS = (1, 2, 4, 8, 16, 32, 64)


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set and gap; the bar is that the mean over the seeds never falls."""
    found = []
    for problem in problems(settings, notes):
        runs = {}
        for count in TASKS:
            runs[count] = [gaps(settings, problem, num_tasks=count, seed=seed) for seed in settings.seeds]
        for gap in problem.gaps:
            epochs = {count: fmean(_first(run, gap) for run in runs[count]) for count in TASKS}
            rises = [after / before for before, after in pairwise(epochs.values()) if math.isfinite(after)]
            found.append(
                Row(
                    part="fig1",
                    what=f"{problem.data.title}, C = {problem.penalty:.3g}: epochs with 1 to 64 tasks",
                    tol=gap,
                    measured=", ".join(f"{count}: {value:.4g}" for count, value in epochs.items()),
                    against="never fewer with more tasks",
                    value=min(rises, default=math.nan),
                    bar=Bar(gate=1.0),
                    details={"epochs": epochs},
                )
            )
    return found


def _first(run: list[float], gap: float) -> float:
    return next((float(number) for number, value in enumerate(run, 1) if value <= gap), math.inf)

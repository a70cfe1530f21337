"""Figure 1 of the paper: epochs to a gap or an accuracy against the number of tasks. More tasks need more epochs."""

import math
from statistics import fmean

from benchmarks.bars import Row
from benchmarks.paper.images import epochs_to, fits, image_sets
from benchmarks.paper.micro import growth_row
from benchmarks.paper.runs import Settings, gaps, problems

TASKS = (1, 2, 4, 8, 16, 32, 64)


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """CoCoA: one line for each data set and gap, means over the seeds."""
    found = []
    for problem in problems(settings, notes):
        runs = {
            count: [gaps(settings, problem, num_tasks=count, seed=seed) for seed in settings.seeds] for count in TASKS
        }
        for gap in problem.gaps:
            epochs = {count: fmean(_first(run, gap) for run in runs[count]) for count in TASKS}
            found.append(growth_row("fig1", f"{problem.data.title}, C = {problem.penalty:.3g}", gap, epochs))
    return found


def image_rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Local SGD: one line for each data set and accuracy."""
    found = []
    for images in image_sets(settings, notes):
        runs = {count: fits(settings, images, num_tasks=count) for count in TASKS}
        for goal in images.goals:
            epochs = {count: fmean(epochs_to(goal, fit.scores) for fit in runs[count]) for count in TASKS}
            found.append(growth_row("fig1_images", f"{images.title} to {goal:.2f}", None, epochs, goal=goal))
    return found


def _first(run: list[float], gap: float) -> float:
    return next((float(number) for number, value in enumerate(run, 1) if value <= gap), math.inf)

"""Figure 1 of the paper: epochs to a gap or an accuracy against the number of tasks. More tasks need more epochs."""

import math
from statistics import fmean

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.images import epochs_to, fits, image_sets
from chicle_elastic.evaluate.micro import growth_row
from chicle_elastic.evaluate.runs import Settings, gaps, problems

TASKS = (1, 2, 4, 8, 16, 32, 64)
QUICK_TASKS = (1, 4, 16, 32)


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """CoCoA: one line for each data set and gap, means over the seeds."""
    found = []
    counts = QUICK_TASKS if settings.is_quick else TASKS
    for problem in problems(settings, notes):
        runs = {
            count: [gaps(settings, problem, num_tasks=count, seed=seed) for seed in settings.seeds] for count in counts
        }
        for gap in problem.gaps:
            epochs = {count: fmean(_first(run, gap) for run in runs[count]) for count in counts}
            title = f"{problem.data.title}, C = {problem.penalty:.3g}"
            found.append(growth_row("fig1", title, gap, epochs, curves=runs))
    return found


def image_rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Local SGD: one line for each data set and accuracy."""
    found = []
    counts = QUICK_TASKS if settings.is_quick else TASKS
    for images in image_sets(settings, notes):
        runs = {count: fits(settings, images, num_tasks=count) for count in counts}
        for goal in images.goals:
            epochs = {count: fmean(epochs_to(goal, fit.scores) for fit in runs[count]) for count in counts}
            curves = {count: [fit.scores for fit in runs[count]] for count in counts}
            title = f"{images.title} to {goal:.2f}"
            found.append(growth_row("fig1_images", title, None, epochs, goal=goal, curves=curves))
    return found


def _first(run: list[float], gap: float) -> float:
    return next((float(number) for number, value in enumerate(run, 1) if value <= gap), math.inf)

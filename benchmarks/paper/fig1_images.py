"""Figure 1 of the paper for local SGD: epochs to an accuracy against the number of tasks."""

import math
from itertools import pairwise
from statistics import fmean

from benchmarks.bars import Bar, Row
from benchmarks.paper.images import fits, image_sets, time_to
from benchmarks.paper.runs import Settings

TASKS = (1, 2, 4, 8, 16, 32, 64)


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set and accuracy; the bar is that the mean over the seeds never falls."""
    found = []
    for images in image_sets(settings, notes):
        runs = {count: fits(settings, images, num_tasks=count) for count in TASKS}
        for goal in images.goals:
            epochs = {
                count: fmean(time_to(goal, fit.scores, range(1, len(fit.scores) + 1)) for fit in runs[count])
                for count in TASKS
            }
            rises = [after / before for before, after in pairwise(epochs.values()) if math.isfinite(after)]
            found.append(
                Row(
                    part="fig1_images",
                    what=f"{images.title} to {goal:.2f}: epochs with 1 to 64 tasks",
                    tol=None,
                    measured=", ".join(f"{count}: {value:.3g}" for count, value in epochs.items()),
                    against="never fewer with more tasks",
                    value=min(rises, default=math.nan),
                    bar=Bar(gate=1.0),
                    details={"epochs": epochs, "goal": goal},
                )
            )
    return found

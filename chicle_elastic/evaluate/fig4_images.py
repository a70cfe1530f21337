"""Figures 4 and 9 of the paper for local SGD: nodes come or go while a job runs, by test accuracy.

Times are told in epochs of 16 nodes: what 16 nodes take for all samples once.
"""

from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.images import SAMPLES_OF_A_TASK, Images, fits, image_sets, reached_of
from chicle_elastic.evaluate.micro import CURVES, RAMPS, TASKS, mean_rows, uni_row
from chicle_elastic.evaluate.projection import (
    Ramp,
    changes_of_local_sgd,
    ends_of_micro_local_sgd,
    ends_of_uni_local_sgd,
)
from chicle_elastic.evaluate.runs import Settings

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Epochs of 16 nodes between two changes, of two nodes each."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set, direction, speed and accuracy; and their mean."""
    found = [
        _row(settings, images, direction, every, goal)
        for images in image_sets(settings, notes)
        for direction in RAMPS
        for every in SPEEDS
        for goal in images.goals
    ]
    return found + mean_rows("fig4", "local SGD: mean of all settings", found)


def _row(settings: Settings, images: Images, direction: str, every: float, goal: float) -> Row:
    first, last = RAMPS[direction]
    ramp = Ramp(first, last, every * images.epoch_units)
    plan = changes_of_local_sgd(ramp, images.num_rows, SAMPLES_OF_A_TASK)
    runs = {"uni": fits(settings, images, num_tasks=first, changes=plan)}
    runs |= {str(tasks): fits(settings, images, num_tasks=tasks) for tasks in TASKS}
    curves: dict[str, list[list[tuple[float, float, float]]]] = {}
    for side, found in runs.items():
        for fit in found:
            if side == "uni":
                ends = ends_of_uni_local_sgd(fit.samples, fit.counts, SAMPLES_OF_A_TASK)
            else:
                ends = ends_of_micro_local_sgd(ramp, fit.samples, fit.counts[0], SAMPLES_OF_A_TASK)
            curves.setdefault(side, []).append(fit.curve([end / images.epoch_units for end in ends]))
    reached = {side: fmean(reached_of(goal, curve) for curve in of) for side, of in curves.items()}
    details: dict[str, Any] = {"direction": direction, "every": every, "panel": f"local SGD, {images.title}"}
    if every == SPEEDS[CURVES] and goal == images.goals[0]:
        details["curves"] = curves
    what = f"local SGD, {images.title} to {goal:.2f}, {first} to {last} nodes, 2 every {every:g} epochs"
    return uni_row("fig4", what, "epochs of 16 nodes", reached, goal=f"accuracy {goal:.2f}", is_image=True, **details)

"""Local SGD while nodes come and go, by test accuracy (mSGD and lSGD in the paper's figures 4 and 9).

Times are told in epochs of 16 nodes: what 16 nodes take for all samples once.
"""

from statistics import fmean

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.images import SAMPLES_OF_A_TASK, Fit, Images, fits, image_sets, time_to
from chicle_elastic.evaluate.micro import RAMPS, TASKS, mean_rows, uni_row
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
    return found + mean_rows("fig9", "local SGD: mean of all settings", found)


def _row(settings: Settings, images: Images, direction: str, every: float, goal: float) -> Row:
    first, last = RAMPS[direction]
    ramp = Ramp(first, last, every * images.epoch_units)
    plan = changes_of_local_sgd(ramp, images.num_rows, SAMPLES_OF_A_TASK)

    def uni_time(fit: Fit) -> float:
        ends = ends_of_uni_local_sgd(fit.samples, fit.counts, SAMPLES_OF_A_TASK)
        return time_to(goal, fit.scores, [ends[end - 1] for end in fit.ends]) / images.epoch_units

    def micro_time(fit: Fit) -> float:
        ends = ends_of_micro_local_sgd(ramp, fit.samples, fit.counts[0], SAMPLES_OF_A_TASK)
        return time_to(goal, fit.scores, [ends[end - 1] for end in fit.ends]) / images.epoch_units

    uni = fmean(uni_time(fit) for fit in fits(settings, images, num_tasks=first, changes=plan))
    micro = {tasks: fmean(micro_time(fit) for fit in fits(settings, images, num_tasks=tasks)) for tasks in TASKS}
    what = f"{images.title} to {goal:.2f}, {first} to {last} nodes, 2 every {every:g} epochs"
    return uni_row("fig9", what, "epochs of 16 nodes", uni, micro, direction=direction, every=every, goal=goal)

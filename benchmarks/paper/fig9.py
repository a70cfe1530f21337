"""Local SGD while nodes come and go, by test accuracy (mSGD and lSGD in the paper's figures 4 and 9).

Times are told in epochs of 16 nodes: what 16 nodes take for all samples once.
"""

import math
from statistics import fmean

from benchmarks.bars import Bar, Row
from benchmarks.paper.images import SAMPLES_OF_A_TASK, Fit, Images, fits, image_sets, time_to
from benchmarks.paper.projection import Ramp, changes_of_local_sgd, ends_of_micro_local_sgd, ends_of_uni_local_sgd
from benchmarks.paper.runs import Settings

TASKS = (16, 24, 32, 64)
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Epochs of 16 nodes between two changes, of two nodes each."""
RAMPS = {"in": (16, 2), "out": (2, 16)}
EACH, MEAN = 1.02, 0.9
"""Time by uni-tasks, at most, over that of the best number of micro-tasks: in every setting, and on average."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set, direction, speed and accuracy; and their mean."""
    found = [
        _row(settings, images, direction, every, goal)
        for images in image_sets(settings, notes)
        for direction in RAMPS
        for every in SPEEDS
        for goal in images.goals
    ]
    ratios = [row.value for row in found if row.value is not None and math.isfinite(row.value)]
    if ratios:
        found.append(
            Row(
                part="fig9",
                what="local SGD: mean of all settings",
                tol=None,
                measured=f"{fmean(ratios):.3f}",
                against=f"{len(ratios)} settings",
                value=fmean(ratios),
                bar=Bar(gate=MEAN, at_most=True),
                details={},
            )
        )
    return found


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
    best = min(micro, key=lambda tasks: micro[tasks])
    others = ", ".join(f"{tasks}: {value:.3g}" for tasks, value in micro.items())
    return Row(
        part="fig9",
        what=f"{images.title} to {goal:.2f}, {first} to {last} nodes, 2 every {every:g} epochs",
        tol=None,
        measured=f"{uni:.3g} epochs of 16 nodes",
        against=f"{micro[best]:.3g} with {best} micro-tasks ({others})",
        value=uni / micro[best] if math.isfinite(micro[best]) else (0.0 if math.isfinite(uni) else math.nan),
        bar=Bar(gate=EACH, at_most=True),
        details={"direction": direction, "every": every, "goal": goal, "uni": uni, "micro": micro},
    )

"""Figure 1 of the paper: epochs to a gap or an accuracy against the number of tasks. More tasks need more epochs.

Also for mini-batch SGD by plain torch, of which larger batches are the parallelism.
"""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.fig8 import torch_scores
from chicle_elastic.evaluate.images import epochs_to, fits, image_sets, most_epochs
from chicle_elastic.evaluate.micro import growth_row
from chicle_elastic.evaluate.projection import NODES, time_to
from chicle_elastic.evaluate.runs import Settings, gaps, problems

TASKS = (1, 2, 4, 8, 16, 32, 64)
PARTITIONS = (128, 256, 512)
"""More micro-tasks of CoCoA, which are run to the largest gap alone."""
BATCHES = (64, 128, 256, 512, 1024)
QUICK_TASKS = (1, 4, 16, 32)


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """CoCoA: one line for each data set and gap, means over the seeds."""
    found = []
    for problem in problems(settings, notes):
        first = replace(problem, gaps=problem.gaps[:1])
        runs = {
            count: gaps(settings, first if count in PARTITIONS else problem, num_tasks=count)
            for count in (QUICK_TASKS if settings.is_quick else (*TASKS, *PARTITIONS))
        }
        curves = {
            str(count): [[(n, n * NODES / count, value) for n, value in enumerate(run, 1)] for run in of]
            for count, of in runs.items()
        }
        for gap in problem.gaps:
            counts = [count for count in runs if gap == problem.gaps[0] or count not in PARTITIONS]
            epochs = {
                count: fmean(time_to(gap, run, range(1, len(run) + 1)) for run in runs[count]) for count in counts
            }
            title = f"{problem.data.title}, C = {problem.penalty:.3g}"
            details: dict[str, Any] = {
                "panel": f"CoCoA, {problem.data.title}",
                "goal": f"gap {gap:g}",
                "curves": curves,
            }
            found.append(growth_row(f"CoCoA, {title}", gap, epochs, by="tasks", **details))
    return found


def image_rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Local SGD by tasks, and mini-batch SGD by batches: one line for each data set and accuracy."""
    found = []
    for images in image_sets(settings, notes):
        whole = replace(images, goals=(math.inf,))
        best = [100.0 * max(fit.scores) for fit in fits(settings, whole, num_tasks=NODES)]
        what = f"local SGD, {images.title}: best test accuracy of {NODES} tasks in {most_epochs(settings)} epochs"
        found.append(Row("fig1", what, None, f"{fmean(best):.1f} %", "", details={"best": best}))
        counts = QUICK_TASKS if settings.is_quick else TASKS
        scores = {
            "local SGD": {count: [fit.scores for fit in fits(settings, images, num_tasks=count)] for count in counts},
            "mini-batch SGD": {batch: torch_scores(settings, images, batch) for batch in BATCHES[: len(counts)]},
        }
        for method, runs in scores.items():
            by = "tasks" if method == "local SGD" else "batch size"
            curves = {
                str(count): [
                    [(n, n * NODES / count if by == "tasks" else n, value) for n, value in enumerate(run, 1)]
                    for run in of
                ]
                for count, of in runs.items()
            }
            for goal in images.goals:
                epochs = {count: fmean(epochs_to(goal, run) for run in of) for count, of in runs.items()}
                details: dict[str, Any] = {"panel": f"{method}, {images.title}", "goal": f"accuracy {goal:.2f}"}
                title = f"{method}, {images.title} to {goal:.2f}"
                found.append(growth_row(title, None, epochs, by=by, is_image=True, curves=curves, **details))
    return found

"""Local SGD while nodes come and go (the paper's mSGD/lSGD parts of figures 4 and 9), on Fashion-MNIST.

An iteration has K L H samples: every task takes H steps of L samples, which is a unit here. So micro-tasks take
ceil(K / N) units for theirs, and uni-tasks one unit for fewer samples. Times are told in epochs of 16 nodes. As in the
paper there is no outer momentum. The test accuracy is that after each epoch, interpolated.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.cnn_data import FILES, ImageData, image_data
from benchmarks.paper.projection import Ramp, changes, ends, micro_units_of_local_sgd
from benchmarks.paper.runs import Settings, cached
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleCNNClassifier

TASKS = (16, 24, 32, 64)
SPEEDS = (2.0,)
"""Epochs of 16 nodes between two changes, of two nodes each."""
RAMPS = {"in": (16, 2), "out": (2, 16)}
GOALS = {"in": (0.80, 0.82), "out": (0.78, 0.80)}
"""Accuracies: the paper's, and one that is harder; scaling out begins with tasks that learn faster."""
MOST_EPOCHS, NUM_TEST = 30, 5_000
SAMPLES_OF_A_TASK = 8 * 16
"""In an iteration, with the default batch and local steps."""
EACH = 1.02


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each direction and accuracy."""
    folder = settings.real / "fashion-mnist"
    if settings.is_quick or not all((folder / f"{part}").is_file() for part in FILES.values()):
        notes.append(f"local SGD was not run: {'a quick run leaves it out' if settings.is_quick else f'no {folder}'}")
        return []
    data = image_data("fashion", folder)
    per_epoch = len(data.y_train) / (16 * SAMPLES_OF_A_TASK)
    found = []
    for direction, (first, last) in RAMPS.items():
        for every in SPEEDS:
            ramp = Ramp(first, last, every * per_epoch)
            count = round(MOST_EPOCHS * 16 * per_epoch)
            uni = _times(settings, data, first, changes(ramp, lambda _: 1.0, count), np.arange(1.0, count + 1))
            micro = {
                tasks: _times(
                    settings,
                    data,
                    tasks,
                    (),
                    ends(ramp, lambda nodes, tasks=tasks: micro_units_of_local_sgd(tasks, nodes), count),
                )
                for tasks in TASKS
            }
            found += [_row(direction, every, goal, per_epoch, uni, micro) for goal in GOALS[direction]]
    return found


Curve = list[tuple[float, float]]


def _row(
    direction: str, every: float, goal: float, per_epoch: float, uni: Sequence[Curve], micro: dict[int, Sequence[Curve]]
) -> Row:
    time = fmean(_time_to(goal, curve) for curve in uni) / per_epoch
    times = {tasks: fmean(_time_to(goal, curve) for curve in curves) / per_epoch for tasks, curves in micro.items()}
    best = min(times, key=lambda tasks: times[tasks])
    first, last = RAMPS[direction]
    others = ", ".join(f"{tasks}: {value:.3g}" for tasks, value in times.items())
    return Row(
        part="fig9",
        what=f"Fashion-MNIST to {goal:g}, {first} to {last} nodes, 2 every {every:g} epochs",
        tol=None,
        measured=f"{time:.3g} epochs of 16 nodes",
        against=f"{times[best]:.3g} with {best} micro-tasks ({others})",
        value=time / times[best] if math.isfinite(times[best]) else (0.0 if math.isfinite(time) else math.nan),
        bar=Bar(gate=EACH, at_most=True),
        details={"direction": direction, "every": every, "goal": goal, "uni": time, "micro": times},
    )


def _times(
    settings: Settings, data: ImageData, tasks: int, plan: Sequence[tuple[int, int]], times: np.ndarray
) -> list[Curve]:
    """(time, test accuracy) at the end of each epoch, of each seed."""
    curves = []
    for seed in settings.seeds:
        names = "-".join(f"{iteration}.{count}" for iteration, count in plan)
        key = f"lsgd_fashion_{tasks}_{names}_{seed}"
        found = cached(settings, key, lambda seed=seed: _run(data, tasks, plan, seed))
        curves.append([(float(times[end - 1]), score) for end, score in found])
    return curves


def _run(data: ImageData, tasks: int, plan: Sequence[tuple[int, int]], seed: int) -> list[tuple[int, float]]:
    """(iteration, test accuracy) at the end of each epoch, until the highest goal."""
    runtime = InProcess(num_tasks=tasks, changes=tuple(plan))
    model = ChicleCNNClassifier(random_state=seed, runtime=runtime, max_epochs=MOST_EPOCHS, outer_momentum=0.0)
    score = _Score(data)
    model.set_callbacks(score).fit(data.X_train, data.y_train)
    last = [index + 1 for index, record in enumerate(model.history_) if "epoch" in record.figures]
    return list(zip(last, score.scores, strict=False))


class _Score:
    """Callback: the test accuracy after each epoch, until the highest goal."""

    def __init__(self, data: ImageData) -> None:
        self.scores: list[float] = []
        self._X, self._y = data.X_test[:NUM_TEST], data.y_test[:NUM_TEST]

    def setup(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def teardown(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_begin(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> bool | None:
        """Score an epoch."""
        if context.task_name != "epoch":
            return None
        self.scores.append(float(fitted_estimator.score(self._X, self._y)))
        return self.scores[-1] >= max(goal for goals in GOALS.values() for goal in goals)


def _time_to(goal: float, curve: Curve) -> float:
    """When the accuracy is reached, between two epochs by a straight line; infinite where it is not."""
    before_s, before = 0.0, 0.1
    for time, score in curve:
        if score >= goal:
            return before_s + (time - before_s) * (goal - before) / (score - before)
        before_s, before = time, score
    return math.inf

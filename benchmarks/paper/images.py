"""Runs of local SGD in one process: samples of each iteration, and the test accuracy after each epoch.

As in the paper there is no outer momentum, and the learning rate is constant. It is the estimator's for a fit of
`MOST_EPOCHS` and grows with the square root of the number of tasks. A run that is in the cache is not made again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cnn_data import FILES, NUM_MADE, ImageData, image_data
from benchmarks.paper.runs import Settings, cached
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleCNNClassifier

SAMPLES_OF_A_TASK = 8 * 16
"""In an iteration: a batch of 8, 16 local steps, as in the paper."""
MOST_EPOCHS = 30
NUM_TEST = 5_000


@dataclass(frozen=True, slots=True)
class Images:
    """A data set, and how far it is trained.

    Attributes:
        key: In names of files.
        title: In tables.
        num_rows: Samples for the training.
        goals: Test accuracies that are looked for, rising.
        load: Reads or makes it.
    """

    key: str
    title: str
    num_rows: int
    goals: tuple[float, ...]
    load: Callable[[], ImageData]

    @property
    def epoch_units(self) -> float:
        """Units that an epoch takes on 16 nodes."""
        return self.num_rows / (16 * SAMPLES_OF_A_TASK)


class Fit(NamedTuple):
    """What a run gave.

    Attributes:
        samples: Of each iteration, all tasks together.
        counts: Tasks in each iteration.
        ends: Last iteration of each epoch, from 1.
        scores: Test accuracy after it.
    """

    samples: list[int]
    counts: list[int]
    ends: list[int]
    scores: list[float]


def image_sets(settings: Settings, notes: list[str]) -> list[Images]:
    """Fashion-MNIST where its files are, and letters, which are made here; none in a quick run."""
    if settings.is_quick:
        notes.append("local SGD was not run: a quick run leaves it out")
        return []
    folder = settings.real / "fashion-mnist"
    found = []
    if all((folder / file).is_file() for file in FILES.values()):
        found.append(Images("fashion", "Fashion-MNIST", 60_000, (0.84, 0.86), partial(_load, "fashion", folder)))
    else:
        notes.append("Fashion-MNIST was not run: there are no files (say --real DIR)")
    if find_spec("matplotlib") is None:
        notes.append("letters were not run: matplotlib, whose fonts they are made of, is not installed")
    else:
        found.append(Images("letters", "letters", NUM_MADE, (0.60, 0.70), partial(_load, "letters", folder)))
    return found


def fits(settings: Settings, images: Images, *, num_tasks: int, changes: Sequence[tuple[int, int]] = ()) -> list[Fit]:
    """A run of each seed, until the highest goal or `MOST_EPOCHS`."""
    names = "-".join(f"{iteration}.{count}" for iteration, count in changes)
    found = []
    for seed in settings.seeds:
        key = f"lsgd_{images.key}_{images.goals[-1]:g}_{num_tasks}_{names}_{seed}"
        found.append(Fit(*cached(settings, key, partial(_fit, images, num_tasks, tuple(changes), seed))))
    return found


def time_to(goal: float, scores: Sequence[float], times: Sequence[float]) -> float:
    """When the accuracy is reached, between two epochs by a straight line; infinite where it is not.

    Args:
        goal: Test accuracy.
        scores: That after each epoch; before the first one it is 0.1, that of guesses.
        times: At the end of each epoch, in any unit.
    """
    before, before_time = 0.1, 0.0
    for score, time in zip(scores, times, strict=True):
        if score >= goal:
            return before_time + (time - before_time) * (goal - before) / (score - before)
        before, before_time = score, time
    return math.inf


@cache
def _load(name: str, folder: Path) -> ImageData:
    """Read or made once, for all figures."""
    return image_data(name, folder)


def _fit(images: Images, num_tasks: int, changes: tuple[tuple[int, int], ...], seed: int) -> Fit:
    data = images.load()
    if len(data.y_train) != images.num_rows:
        raise SystemExit(f"{images.title} has {len(data.y_train)} samples for the training, not {images.num_rows}")
    model = ChicleCNNClassifier(
        random_state=seed,
        runtime=InProcess(num_tasks=num_tasks, changes=changes),
        max_epochs=MOST_EPOCHS,
        outer_momentum=0.0,
        decay=0.0,
    )
    score = _Score(data, images.goals[-1])
    model.set_callbacks(score).fit(data.X_train, data.y_train)
    ends = [number for number, record in enumerate(model.history_, 1) if "epoch" in record.figures]
    samples, counts = (np.asarray(model.history_.column(name)).tolist() for name in ("samples", "num_tasks"))
    return Fit(samples, counts, ends, score.scores)


class _Score:
    """Callback: the test accuracy after each epoch, until a goal."""

    def __init__(self, data: ImageData, goal: float) -> None:
        self.scores: list[float] = []
        self._X, self._y = data.X_test[:NUM_TEST], data.y_test[:NUM_TEST]
        self._goal = goal

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
        return self.scores[-1] >= self._goal

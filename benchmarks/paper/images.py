"""Runs of local SGD in one process: samples of each iteration, and the test accuracy after each epoch.

As in the paper there is no outer momentum, and the learning rate is constant. It is the estimator's for a fit of
`MOST_EPOCHS` and grows with the square root of the number of tasks. A run that is in the cache is not made again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.cnn_data import FILES, NUM_MADE, EpochScores, ImageData, image_data, time_to
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


def epochs_to(goal: float, scores: Sequence[float]) -> float:
    """Epochs until an accuracy is reached."""
    return time_to(goal, scores, range(1, len(scores) + 1))


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
    X, y = data.X_test[:NUM_TEST], data.y_test[:NUM_TEST]
    score = EpochScores(X, y, lambda scores: scores[-1] >= images.goals[-1])
    model.set_callbacks(score).fit(data.X_train, data.y_train)
    ends = [number for number, record in enumerate(model.history_, 1) if "epoch" in record.figures]
    samples, counts = (np.asarray(model.history_.column(name)).tolist() for name in ("samples", "num_tasks"))
    return Fit(samples, counts, ends, score.scores)

"""Runs of local SGD in one process: samples of each iteration, and the test accuracy after each epoch.

As in the paper there is no outer momentum, and the learning rate is constant. It is the estimator's for a fit of
`MOST_EPOCHS` and grows with the square root of the number of tasks. A run that is in the cache is not made again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from chicle_elastic.clock import Clock, VirtualClock
from chicle_elastic.evaluate.image_data import EpochScores, ImageData, time_to
from chicle_elastic.evaluate.runs import Settings, by_seed
from chicle_elastic.evaluate.throttled import ODD, Pace, ThrottledLocalSGD
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome
from estimators import ChicleCNNClassifier

BATCH, LOCAL_STEPS = 8, 16  # as in the paper
SAMPLES_OF_A_TASK = BATCH * LOCAL_STEPS
"""In an iteration."""
MIXED_CHUNKS = 1024
"""On nodes of two speeds, at the least: so many are dealt out evenly enough."""
MOST_EPOCHS = 30
QUICK_EPOCHS = 3
NUM_TEST = 5_000
GOALS = (0.9, 0.97)
"""Of the best accuracy of one task: what other numbers of tasks are to come to."""


@dataclass(frozen=True, slots=True)
class Images:
    """A data set, and how far it is trained.

    Attributes:
        key: In names of files.
        title: In tables.
        num_rows: Samples for the training.
        goals: Test accuracies that are looked for, rising.
        data: Images and labels.
    """

    key: str
    title: str
    num_rows: int
    goals: tuple[float, ...]
    data: ImageData

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
        seconds: Of the slowest task in each iteration; of nodes of two speeds these are units.
    """

    samples: list[int]
    counts: list[int]
    ends: list[int]
    scores: list[float]
    seconds: list[float]

    def curve(self, times: Sequence[float]) -> list[tuple[float, float, float]]:
        """(epochs, time, accuracy) at the end of each epoch, by the time at the end of each iteration."""
        return [
            (n, times[end - 1], score) for n, (end, score) in enumerate(zip(self.ends, self.scores, strict=True), 1)
        ]

    def whole_units(self) -> list[float]:
        """Return the units of each iteration, were it whole: the last one of an epoch has fewer samples."""
        return [16 * SAMPLES_OF_A_TASK * of / count for of, count in zip(self.seconds, self.samples, strict=True)]


@dataclass(frozen=True)
class MixedNodes(InProcess):
    """16 nodes, of which every second one is slower; time passes by samples, and `Rebalance` works.

    Attributes:
        slowdown: How many times longer a slow one takes.
    """

    num_tasks: int = 16
    slowdown: float = 1.0

    def most_tasks(self) -> int:
        """Chunks are cut so that so many tasks would have some."""
        return MIXED_CHUNKS

    def run(self, job: Job, *, clock: Clock | None = None) -> Outcome:
        """Run the job on a virtual clock."""
        known = {field.name: getattr(job.trainer, field.name) for field in fields(job.trainer)}  # type: ignore[arg-type]
        pace = Pace(row_s=1.0 / SAMPLES_OF_A_TASK, slow=ODD, factor=self.slowdown, until=math.inf)
        job = replace(job, trainer=ThrottledLocalSGD(**known, pace=pace), policies=(Rebalance(),))
        return super().run(job, clock=VirtualClock())


def image_sets(settings: Settings, notes: list[str]) -> list[Images]:
    """Each data set, to accuracies that one task has after its second epoch and at its best."""
    if not settings.images:
        notes.append("local SGD was not run: there are no images")
    found = []
    for title, data in settings.images:
        key = f"{title.replace(' ', '_').replace('/', '_')}_{len(data.y_train)}"
        images = Images(key, title, len(data.y_train), (math.inf,), data)
        scores = fits(replace(settings, seeds=settings.seeds[:1]), images, num_tasks=1)[0].scores
        goals = tuple(sorted({round(share * max(scores), 2) for share in GOALS}))
        found.append(replace(images, goals=goals))
    return found


def most_epochs(settings: Settings) -> int:
    """Epochs of a run that does not come to the highest goal."""
    return QUICK_EPOCHS if settings.is_quick else MOST_EPOCHS


def fits(
    settings: Settings,
    images: Images,
    *,
    num_tasks: int = 16,
    changes: Sequence[tuple[int, int]] = (),
    slowdown: float | None = None,
) -> list[Fit]:
    """A run of each seed, until the highest goal or so many epochs.

    Args:
        settings: With the seeds.
        images: Data, and how far it is trained.
        num_tasks: At the beginning.
        changes: As of `InProcess`.
        slowdown: Of every second one of 16 nodes; None for equal ones.
    """
    names = "-".join(f"{iteration}.{count}" for iteration, count in changes)
    runtime = InProcess(num_tasks=num_tasks, changes=tuple(changes))
    if slowdown is not None:
        names, runtime = f"mixed{slowdown:g}", MixedNodes(slowdown=slowdown)
    most = most_epochs(settings)
    key = f"lsgd_{images.key}_{images.goals[-1]:g}_{most}_{num_tasks}_{names}"
    return [Fit(*found) for found in by_seed(settings, key, partial(_fit, images, most, runtime))]


def reached_of(goal: float, curve: Sequence[tuple[float, float, float]]) -> float:
    """Time until an accuracy is reached."""
    return time_to(goal, [score for _, _, score in curve], [time for _, time, _ in curve])


def epochs_to(goal: float, scores: Sequence[float]) -> float:
    """Epochs until an accuracy is reached."""
    return time_to(goal, scores, range(1, len(scores) + 1))


def _fit(images: Images, most: int, runtime: InProcess, seed: int) -> Fit:
    data = images.data
    model = ChicleCNNClassifier(
        random_state=seed,
        runtime=runtime,
        batch_size=BATCH,
        local_steps=LOCAL_STEPS,
        max_epochs=most,
        outer_momentum=0.0,
        decay=0.0,
    )
    X, y = data.X_test[:NUM_TEST], data.y_test[:NUM_TEST]
    score = EpochScores(X, y, lambda scores: scores[-1] >= images.goals[-1])
    model.set_callbacks(score).fit(data.X_train, data.y_train)
    ends = [number for number, record in enumerate(model.history_, 1) if "epoch" in record.figures]
    samples, counts = (np.asarray(model.history_.column(name)).tolist() for name in ("samples", "num_tasks"))
    return Fit(samples, counts, ends, score.scores, [max(record.seconds.values()) for record in model.history_])

"""Figure 8 of the paper: local SGD against mini-batch SGD by plain torch, same network and learning rate, by epochs.

One task is SGD with batches of 8, and so has a plain counterpart. Four tasks stand against batches of 32: four tasks
that average after each step would compute just that. Rates grow with the square root of the tasks, or of the batch.
"""

import math
from functools import partial
from statistics import fmean

import numpy as np

from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.images import NUM_TEST, Images, epochs_to, fits, image_sets, most_epochs
from chicle_elastic.evaluate.runs import Settings, by_seed
from estimators.cnn_defaults import auto_learning_rate

TASKS = (1, 4)
BATCH, MOMENTUM = 8, 0.9
SCORED = 512
EACH = 1.1
"""Epochs by Chicle, at most, over those by torch."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set, number of tasks and accuracy."""
    return [
        _row(settings, images, tasks, goal)
        for images in image_sets(settings, notes)
        for tasks in TASKS
        for goal in images.goals
    ]


def _row(settings: Settings, images: Images, tasks: int, goal: float) -> Row:
    sides = {
        f"Chicle, {tasks} task{'s' * (tasks > 1)}": [fit.scores for fit in fits(settings, images, num_tasks=tasks)],
        f"torch, batches of {BATCH * tasks}": torch_scores(settings, images, BATCH * tasks),
    }
    ours, theirs = (fmean(epochs_to(goal, run) for run in runs) for runs in sides.values())
    curves = {side: [[(n, n, value) for n, value in enumerate(run, 1)] for run in of] for side, of in sides.items()}
    what = f"{images.title} to {goal:.2f}, {tasks} task{'s' * (tasks > 1)}: epochs"
    shown = (f"{ours:.3g}", f"torch, batches of {BATCH * tasks}: {theirs:.3g}")
    details = {"panel": f"{images.title}, batches of {BATCH * tasks}", "curves": curves, "is_image": True}
    value = ours / theirs if math.isfinite(ours) else math.inf
    return Row("fig8", what, None, *shown, value, Bar(gate=EACH, at_most=True), details)


def torch_scores(settings: Settings, images: Images, batch: int) -> list[list[float]]:
    """Test accuracy after each epoch of plain torch, of each seed, until the highest goal or so many epochs."""
    most = most_epochs(settings)
    key = f"torch_{images.key}_{images.goals[-1]:g}_{most}_{batch}"
    return by_seed(settings, key, partial(_torch_scores, images, batch, most))


def _torch_scores(images: Images, batch: int, most: int, seed: int) -> list[float]:
    import torch
    from torch.nn import functional

    from chicle_elastic.solvers.engines.paper_cnn import PaperCNN

    data = images.data
    rate = auto_learning_rate(most * images.num_rows, batch_size=BATCH, momentum=MOMENTUM)
    mean, deviation = float(data.X_train.mean(dtype=np.float64)), float(data.X_train.std(dtype=np.float64))
    X, X_test = (
        torch.from_numpy((part.astype(np.float32) - mean) / deviation).reshape(len(part), -1, *part.shape[-2:])
        for part in (data.X_train, data.X_test[:NUM_TEST])
    )
    y, y_test = (torch.from_numpy(part.astype(np.int64)) for part in (data.y_train, data.y_test[:NUM_TEST]))
    torch.set_num_threads(1)  # sums of several threads round otherwise, and runs of other seeds have the other cores
    torch.manual_seed(seed)
    _, channels, height, width = X.shape
    net = PaperCNN(channels, height, width, 1 + int(y.max()))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate * math.sqrt(batch / BATCH), momentum=MOMENTUM)
    scores: list[float] = []
    while len(scores) < most and not (scores and scores[-1] >= images.goals[-1]):
        for part in torch.randperm(len(y)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(net(X[part]), y[part]).backward()
            optimizer.step()
        with torch.no_grad():
            parts = zip(X_test.split(SCORED), y_test.split(SCORED), strict=True)
            right = sum(int((net(rows).argmax(1) == codes).sum()) for rows, codes in parts)
        scores.append(right / len(y_test))
    return scores

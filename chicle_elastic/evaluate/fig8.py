"""Figure 8 of the paper: local SGD against mini-batch SGD by plain torch, same network and learning rate, by epochs.

One task is SGD with batches of 8, and so has a plain counterpart. Four tasks stand against batches of 32: four tasks
that average after each step would compute just that. Rates grow with the square root of the tasks, or of the batch.
"""

import math
from functools import partial
from statistics import fmean

import numpy as np

from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.image_data import ImageData
from chicle_elastic.evaluate.images import MOST_EPOCHS, NUM_TEST, Images, epochs_to, fits, image_sets
from chicle_elastic.evaluate.runs import Settings, cached
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
    batch = BATCH * tasks
    rate = auto_learning_rate(MOST_EPOCHS * images.num_rows, batch_size=BATCH, momentum=MOMENTUM) * math.sqrt(tasks)
    ours = fmean(epochs_to(goal, fit.scores) for fit in fits(settings, images, num_tasks=tasks))
    plain = []
    for seed in settings.seeds:
        key = f"torch_{images.key}_{images.goals[-1]:g}_{batch}_{seed}"
        scores = cached(settings, key, partial(_torch_scores, images, batch, rate, seed))
        plain.append(epochs_to(goal, scores))
    theirs = fmean(plain)
    what, against = f"{images.title} to {goal:.2f}, {tasks} task{'s' * (tasks > 1)}: epochs", f"batches of {batch}"
    details = {"tasks": tasks, "goal": goal, "ours": ours, "torch": theirs, "rate": rate}
    shown = (f"{ours:.3g}", f"torch, {against}: {theirs:.3g}")
    return Row("fig8", what, None, *shown, ours / theirs, Bar(gate=EACH, at_most=True), details)


def _torch_scores(images: Images, batch: int, rate: float, seed: int) -> list[float]:
    """Test accuracy after each epoch of plain torch, until the highest goal or `MOST_EPOCHS`."""
    import torch
    from torch.nn import functional

    from chicle_elastic.solvers.engines.paper_cnn import PaperCNN

    data: ImageData = images.data
    mean, deviation = float(data.X_train.mean(dtype=np.float64)), float(data.X_train.std(dtype=np.float64))
    X, X_test = (
        torch.from_numpy((part.astype(np.float32) - mean) / deviation)[:, None]
        for part in (data.X_train, data.X_test[:NUM_TEST])
    )
    y, y_test = (torch.from_numpy(part.astype(np.int64)) for part in (data.y_train, data.y_test[:NUM_TEST]))
    torch.manual_seed(seed)
    _, channels, height, width = X.shape
    net = PaperCNN(channels, height, width, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=MOMENTUM)
    scores: list[float] = []
    while len(scores) < MOST_EPOCHS and not (scores and scores[-1] >= images.goals[-1]):
        for part in torch.randperm(len(y)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(net(X[part]), y[part]).backward()
            optimizer.step()
        with torch.no_grad():
            parts = zip(X_test.split(SCORED), y_test.split(SCORED), strict=True)
            right = sum(int((net(rows).argmax(1) == codes).sum()) for rows, codes in parts)
        scores.append(right / len(y_test))
    return scores

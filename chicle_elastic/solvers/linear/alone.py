"""Coordinate descent over little data without a job: the first turn of the race, made by the caller himself.

A job of one task makes the same passes and the same certificates. What it adds, iterations and decisions that are the
same each time, costs more than they do where a pass takes microseconds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chicle_elastic.chunks.sources import ChunkSource
from chicle_elastic.chunks.views import Array, StateSpec
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Report
from chicle_elastic.solvers.kernels import losses as kernels
from chicle_elastic.solvers.linear.coordinates import (
    AGAIN,
    FIRST_STEPS,
    LONG_ITERATION,
    first_turn,
    metrics_of,
    visit_work,
)
from chicle_elastic.solvers.linear.descent import Descent, relative_gaps
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import CACHED_ROW_VALUES, PASS_VALUES
from chicle_elastic.solvers.linear.regression.losses import EpsilonInsensitive
from chicle_elastic.solvers.linear.regression.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk

FEW_STEPS = 6
"""Newton steps that the turn of a regression pays for: the job that follows rarely needs more than ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a certificate was made of.

    Attributes:
        model: w of each output, flattened.
        state: Duals in the order of the rows, shape (num_rows, outputs, 1).
        report: The certificate.
    """

    model: Array
    state: Array
    report: Report


def looks(
    trainer: LinearTrainer | RegressionTrainer, source: ChunkSource, *, seed: int, max_looks: int
) -> Iterator[Look]:
    """Make passes, and look each time that the gap seems to be small enough, until the first turn is over.

    Nothing comes of rows that do not stay in the cache, and where coordinate descent does not minimise the objective.

    Args:
        trainer: Says what is minimised.
        source: The rows, in order.
        seed: Of the order of visits.
        max_looks: The last one comes wherever passes are by then.

    Raises:
        DataError: A feature is NaN or infinite.
    """
    schema, outputs = source.schema, trainer.num_outputs(source.schema)
    progress = trainer.begin(schema, np.zeros(outputs * (schema.num_features + 1)), NO_PROGRESS, 1)
    problem = _problem(trainer, progress)
    if problem is None:
        return
    gate, spec = Gate("alone"), StateSpec(outputs=outputs, width=1, dtype="float64")
    gate.open(1)
    chunks = {info.id: LocalChunk(source.load(info.id, spec), gate) for info in source.infos(spec)}
    local = LocalData(chunks, bounds=problem.bounds, intercept=trainer.intercept_scaling, loss=problem.loss)
    if local.tables.bucket_rows > 1:
        return
    descent = Descent(local, np.random.default_rng(seed), problem.kernel_loss)
    budget = Budget(clock=MonotonicClock(), num_tasks=1, iteration=1)
    visit, turn = visit_work(local.tables, CACHED_ROW_VALUES), first_turn(local.tables, problem.steps)
    w, goal, work = np.zeros((outputs, schema.num_features + 1)), trainer.tol, 0.0
    for number in range(1, max_looks + 1):
        while True:
            before = descent.visits
            most_visits = 1 + int(min(turn - work, LONG_ITERATION) / visit / outputs)
            w, _ = descent.run(w, budget, num_threads=1, goal=goal, most_visits=most_visits)
            work += (descent.visits - before) * visit + PASS_VALUES
            if work >= turn or np.max(relative_gaps(w, descent.gaps, local.dual_sums)) <= goal:
                break
        rebuilt, metrics = problem.certify(local, w)
        report = Report(
            iteration=number,
            epochs=descent.visits / outputs / schema.num_rows,
            samples=schema.num_rows,
            num_tasks=1,
            metrics=metrics,
            is_certificate=True,
            max_iterations=max_looks,
            last_certificate=number,
            rebuilt=rebuilt.ravel(),
            progress=progress,
        )
        state = np.concatenate([block.state for block in local.tables.keep_alive])
        yield Look(model=w.ravel(), state=state, report=report)
        if work >= turn:
            return
        goal *= AGAIN * min(trainer.tol / trainer.relative_gap(w.ravel(), report), 1.0)
        descent.visit_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """What is minimised.

    Attributes:
        bounds: Where the C_i come from.
        loss: Of class codes.
        kernel_loss: Of other targets.
        certify: Finds w of the duals, shape (outputs, D), and the sums of a certificate, as the solver of a job does.
        steps: Newton steps that the turn pays for.
    """

    bounds: Bounds
    certify: Callable[[LocalData, Array], tuple[Array, Mapping[str, float]]]
    loss: Loss = Loss.HINGE
    kernel_loss: Any = None
    steps: int = FIRST_STEPS


def _problem(trainer: LinearTrainer | RegressionTrainer, progress: Array) -> _Problem | None:
    """Return what coordinate descent of one task minimises; None where a job begins with something else."""
    if isinstance(trainer, LinearTrainer):
        bounds = Bounds(trainer.C, trainer.class_weights, trainer.code_classes)
        problem = _Problem(bounds=bounds, loss=Loss.named(trainer.loss), certify=_certify_classes)
        return problem if progress is NO_PROGRESS else None
    loss, is_of_sums = trainer.loss, trainer.alpha == 1.0 and not trainer.is_mean
    if not (isinstance(loss, EpsilonInsensitive) and is_of_sums and trainer.penalises_intercept):
        return None
    kernel_loss, certify = kernels.EpsilonInsensitive(loss.epsilon), partial(_certify_targets, loss)
    return _Problem(bounds=Bounds(trainer.C), kernel_loss=kernel_loss, certify=certify, steps=FEW_STEPS)


def _certify_classes(local: LocalData, w: Array) -> tuple[Array, Mapping[str, float]]:
    rebuilt, sums = local.certify(local.loss, w, has_losses=True, is_known=False)
    return rebuilt, metrics_of(loss=sums[:, 0], dual=sums[:, 1])


def _certify_targets(loss: EpsilonInsensitive, local: LocalData, w: Array) -> tuple[Array, Mapping[str, float]]:
    upper, y, duals = local.upper, local.targets, local.duals(0)
    scores = local.rows.times(w[0])
    losses = upper * loss.values(scores, y, 0.0)
    slopes = np.divide(duals, upper, out=np.zeros_like(duals), where=upper > 0)
    metrics = {
        "loss": float(losses.sum()),
        "lack": float((losses - upper * loss.dual_values(slopes, scores, y)).sum()),
        "squares": float(duals @ slopes),
        "total": float(upper.sum()),
        "scores": float(upper @ scores),
        "rows": float(len(y)),
    }
    return local.rows.weighted_sum(duals), metrics

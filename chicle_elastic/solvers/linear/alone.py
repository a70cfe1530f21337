"""Coordinate descent over little data without a job: the first turn of the race, made by the caller himself.

A job of one task makes the same passes and the same certificates. What it adds, iterations and decisions that are the
same each time, costs more than they do where a pass takes microseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.sources import ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Report
from chicle_elastic.solvers.linear.coordinates import AGAIN, LONG_ITERATION, first_turn, metrics_of, visit_work
from chicle_elastic.solvers.linear.descent import Descent, relative_gaps
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import CACHED_ROW_VALUES, PASS_VALUES
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk


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


def looks(trainer: LinearTrainer, source: ChunkSource, *, seed: int, max_looks: int) -> Iterator[Look]:
    """Make passes, and look each time that the gap seems to be small enough, until the first turn is over.

    Nothing comes where a job of one task would not begin with passes over rows in the cache.

    Args:
        trainer: Says what is minimised.
        source: The rows, in order.
        seed: Of the order of visits.
        max_looks: The last one comes wherever passes are by then.

    Raises:
        DataError: A feature is NaN or infinite.
    """
    schema, spec = source.schema, trainer.state(source.schema).without_notes()
    outputs = trainer.num_outputs(schema)
    model = np.zeros(outputs * (schema.num_features + 1))
    if trainer.begin(schema, model, NO_PROGRESS, 1) is not NO_PROGRESS:
        return
    gate = Gate("alone")
    gate.open(1)
    local = LocalData(
        {info.id: LocalChunk(source.load(info.id, spec), gate) for info in source.infos(spec)},
        bounds=Bounds(trainer.C, trainer.class_weights, trainer.code_classes),
        intercept=trainer.intercept_scaling,
        loss=Loss.named(trainer.loss),
    )
    if local.tables.bucket_rows > 1:
        return
    descent = Descent(local, np.random.default_rng(seed))
    budget = Budget(clock=MonotonicClock(), num_tasks=1, iteration=1)
    visit, turn = visit_work(local.tables, CACHED_ROW_VALUES), first_turn(local.tables)
    w, goal, work = model.reshape(outputs, -1), trainer.tol, 0.0
    for number in range(1, max_looks + 1):
        while True:
            before = descent.visits
            most_visits = 1 + int(min(turn - work, LONG_ITERATION) / visit / outputs)
            w, _ = descent.run(w, budget, num_threads=1, goal=goal, most_visits=most_visits)
            work += (descent.visits - before) * visit + PASS_VALUES
            if work >= turn or np.max(relative_gaps(w, descent.gaps, local.dual_sums)) <= goal:
                break
        rebuilt, sums = local.certify(local.loss, w, has_losses=True, is_known=False)
        report = Report(
            iteration=number,
            epochs=descent.visits / outputs / schema.num_rows,
            samples=schema.num_rows,
            num_tasks=1,
            metrics=metrics_of(loss=sums[:, 0], dual=sums[:, 1]),
            is_certificate=True,
            max_iterations=max_looks,
            last_certificate=number,
            rebuilt=rebuilt.ravel(),
        )
        state = np.concatenate([block.state for block in local.tables.keep_alive])
        yield Look(model=w.ravel(), state=state, report=report)
        if work >= turn:
            return
        goal *= AGAIN * min(trainer.tol / trainer.relative_gap(w.ravel(), report), 1.0)
        descent.visit_all()

"""Coordinate descent over little data without a job: the iterations of an only task, made by the caller himself.

A job makes the same passes and the same certificates. What it adds, decisions that are the same each time, costs more
than they do where a pass takes microseconds.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Report, Update
from chicle_elastic.solvers.kernels import losses as kernels
from chicle_elastic.solvers.linear.coordinates import FIRST_STEPS, CoordinatePasses, metrics_of
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.losses import EpsilonInsensitive
from chicle_elastic.solvers.linear.newton.passes import certificate_sums
from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide.finish import MAX_FEATURES
from chicle_elastic.solvers.local_chunk import MOST_CACHED_VALUES, Gate, LocalChunk

WIDE_TURN = 8
"""First turns over wide rows, where the job of a regression goes on by conjugate gradients, which take hundreds of
products a step and may not end: on 3,000 x 20,000 sparse rows 8 turns take 7 ms, and 1 with the job 0.5 s. With 4 these
gain nearly all; with 8 rows of low rank, which fail either way, take twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Hold where an iteration has ended."""

    model: Array  # w of each output, flattened
    report: Report  # the certificate, or what the passes have summed up
    figures: Mapping[str, float]  # the largest relative gap that the passes have estimated, and those of a certificate
    duals: Callable[[], Array]  # returns those of the model in the order of the rows, shape (num_rows, outputs, 1)


def looks(
    trainer: LinearTrainer | RegressionTrainer,  # says what is minimised
    source: ArraySource,  # the rows, in order
    *,
    seed: int,  # of the order of visits
    max_iterations: int,  # how many there are at most
    initial_state: Array | None = None,  # duals to begin with, (num_rows, outputs, 1); those of a regression are 0
) -> Iterator[Look]:
    """Make iterations; those that seem to be good enough, and some others, have certificates.

    Nothing comes of rows that do not stay in the cache, and where coordinate descent does not minimise the objective.
    The last one is that before another method has to go on, or that which Ctrl-C has cut: a KeyboardInterrupt follows.
    A DataError says that a feature is NaN or infinite.
    """
    schema, outputs = source.schema, trainer.num_outputs(source.schema)
    model = np.zeros(outputs * (schema.num_features + 1))
    # Of sparse rows a job knows the columns, not the values: there may be little data of a loss with kinks.
    descends = isinstance(trainer, LinearTrainer) and trainer.algorithm == "auto" and Loss.named(trainer.loss).has_kinks
    is_little = source.num_values <= MOST_CACHED_VALUES
    progress = NO_PROGRESS if descends and is_little else trainer.begin(schema, model, NO_PROGRESS, 1)
    options = _options(trainer, progress, schema)
    if options is None or schema.num_rows > MOST_CACHED_VALUES:  # each has a value
        return
    is_of_classes = isinstance(trainer, LinearTrainer)
    loss = Loss.named(trainer.loss) if isinstance(trainer, LinearTrainer) else Loss.HINGE
    gate, spec = Gate("alone"), StateSpec(outputs=outputs, width=1, dtype="float64")
    gate.open(1)
    ids = map(ChunkId, range(source.num_chunks))
    chunks = {chunk_id: LocalChunk(source.load(chunk_id, spec), gate) for chunk_id in ids}
    bounds = Bounds(trainer.C, trainer.class_weights, trainer.code_classes)
    local = LocalData(chunks, bounds=bounds, intercept=trainer.intercept_scaling, loss=loss)
    if local.tables.bucket_rows > 1:
        return
    if initial_state is not None:
        for block in local.tables.keep_alive:
            block.state[...] = initial_state[block.row_ids]
        model, _ = _certify(trainer, local, model)
    rng = np.random.default_rng(seed)
    passes = CoordinatePasses(rng, local, tol=trainer.tol, **options)
    num_rows, last_certificate, interrupt = 0, 0, None
    for number in range(1, max_iterations + 1):
        budget = Budget(clock=MonotonicClock(), num_tasks=1, iteration=number)
        try:
            update = passes.run(model, budget)
            model, num_rows = model + update.delta, num_rows + update.samples
        except KeyboardInterrupt as error:  # duals have moved, and w has not
            interrupt, update = error, Update(delta=model, samples=0, weight=1.0)
            model, _ = _certify(trainer, local, model)
        has_given_up = loss is not Loss.HINGE and math.inf in update.metrics.values()
        is_over = has_given_up or (passes.is_newton and not is_of_classes)
        is_long_ago = number - last_certificate >= max(16, last_certificate)
        is_last = is_over or interrupt is not None or number == max_iterations
        is_certificate = passes.is_near or is_long_ago or is_last
        rebuilt, metrics = model, update.metrics
        if is_certificate:
            passes.visit_all()
            rebuilt, metrics = _certify(trainer, local, model)
        report = Report(
            iteration=number,
            epochs=num_rows / schema.num_rows,
            samples=update.samples,
            num_tasks=1,
            metrics=metrics,
            is_certificate=is_certificate,
            max_iterations=max_iterations,
            last_certificate=last_certificate,
            progress=progress,
            rebuilt=rebuilt if is_certificate else None,
        )
        figures = {"duality_gap_estimate": passes.last_gap}
        if is_certificate:
            figures |= trainer.figures(model, report)
            passes.certified(figures["duality_gap"])
            last_certificate = number
        yield Look(
            model=model,
            report=report,
            figures=figures,
            duals=lambda: np.concatenate([block.state for block in local.tables.keep_alive]),
        )
        if interrupt is not None:
            raise interrupt
        if is_over:
            return


def _options(trainer: LinearTrainer | RegressionTrainer, progress: Array, schema: DataSchema) -> dict[str, Any] | None:
    """Return those of `CoordinatePasses`; None where coordinate descent is not what a job begins with, nor minimises
    the objective. That of targets has no Newton steps of its own.
    """
    if isinstance(trainer, LinearTrainer):
        return {"descends_only": trainer.algorithm == "cocoa"} if progress is NO_PROGRESS else None
    loss, is_of_sums = trainer.loss, trainer.alpha == 1.0 and not (trainer.is_mean or trainer.l1_ratio)
    if not isinstance(loss, EpsilonInsensitive) or schema.target_dtype != "float64":
        return None
    if not (is_of_sums and trainer.penalises_intercept):
        return None
    steps = FIRST_STEPS if schema.num_features <= MAX_FEATURES else WIDE_TURN * FIRST_STEPS
    return {"loss": kernels.EpsilonInsensitive(loss.epsilon), "first_steps": steps}


def _certify(
    trainer: LinearTrainer | RegressionTrainer, local: LocalData, model: Array
) -> tuple[Array, Mapping[str, float]]:
    """Find w of the duals, flattened, and the sums of a certificate, as the solver of a job does."""
    w = model.reshape(local.tables.num_outputs, -1)
    if isinstance(trainer, LinearTrainer):
        rebuilt, sums = local.certify(local.loss, w, has_losses=True, is_known=False)
        return rebuilt.ravel(), metrics_of(loss=sums[:, 0], dual=sums[:, 1])
    upper, y, duals = local.upper, local.targets, local.duals(0)
    slopes = np.divide(duals, upper, out=np.zeros_like(duals), where=upper > 0)
    metrics = {"rows": float(len(y)), "total": float(upper.sum())}
    metrics |= certificate_sums(trainer.loss, 0, local.rows.times(w[0]), slopes, y, upper)
    return local.rows.weighted_sum(duals), metrics

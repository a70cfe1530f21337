"""Fits of little data in this process without a job, where nobody has asked for one."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.blas_threads import one_blas_thread
from chicle_elastic.runtime.training.job import Outcome
from chicle_elastic.values import ChunkAccount

if TYPE_CHECKING:
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.solvers.base import Report, Trainer
    from chicle_elastic.solvers.linear.alone import Look

TASK = NodeId("task-0")


def needs_no_job(estimator: Any) -> bool:
    """Say whether nobody has asked for a job, so that little data need not be one."""
    is_watched = estimator.verbose or estimator.logdir is not None or hasattr(estimator, "_parent_callback_ctx")
    wishes = estimator.runtime, estimator.n_workers, estimator.policy, estimator.chunk_size
    return not (is_watched or any(wish is not None for wish in wishes) or getattr(estimator, "_skl_callbacks", False))


class Accounts:
    """History and ledger of a fit without a job.

    Args:
        chunk_rows: Rows of each chunk.
        begin: When the fit began, as `time.monotonic` says it; None for now.
    """

    def __init__(self, chunk_rows: Sequence[int], begin: float | None = None) -> None:
        self._chunk_rows = chunk_rows
        self._begin = self._before = time.monotonic() if begin is None else begin
        self.history = History()

    def add(self, figures: Mapping[str, float], epochs: float = 1.0) -> None:
        """Add the record of an iteration that ends now."""
        now = time.monotonic()
        self.history.append(
            IterationRecord(
                iteration=len(self.history) + 1,
                epochs=epochs,
                time_s=now - self._begin,
                num_tasks=1,
                samples=sum(self._chunk_rows),
                num_chunks={TASK: len(self._chunk_rows)},
                seconds={TASK: now - self._before},
                figures=figures,
            )
        )
        self._before = now

    def ledger(self) -> JobLedger:
        """Return what became of the chunks, which every iteration has read."""
        read = {TASK: len(self.history)}
        rows = enumerate(self._chunk_rows)
        return JobLedger(
            [ChunkAccount(chunk=ChunkId(i), rows=number, owner=TASK, iterations=read, replays=0) for i, number in rows]
        )


def fit_alone(
    estimator: Any, trainer: "Trainer", training: Any, seed: int, *, keep_state: bool = False
) -> tuple[Outcome | None, "Look | None"]:
    """Fit a linear model without a job, as far as coordinate descent goes.

    Args:
        estimator: Being fitted.
        trainer: The algorithm.
        training: The data.
        seed: Of the order of visits.
        keep_state: Whether the outcome is to have the duals.

    Returns:
        The outcome, None where a job has to go on, and the last iteration, None where there was none.
    """
    from chicle_elastic.solvers.linear.alone import looks
    from chicle_elastic.solvers.linear.regression.trainer import RegressionTrainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    is_alone = needs_no_job(estimator) and getattr(training, "features", None) is not None
    if not (is_alone and isinstance(trainer, LinearTrainer | RegressionTrainer) and trainer.tol > 0):
        return None, None
    source, max_iter = training.source, int(estimator.max_iter)
    accounts = Accounts([info.num_rows for info in source.infos(trainer.state(source.schema))])
    last: Look | None = None
    best: tuple[Array, Report, Array | None] | None = None
    is_interrupted, gap = False, math.inf
    try:
        with one_blas_thread():
            for last in looks(trainer, source, seed=seed, max_iterations=max_iter):
                figures = trainer.figures(last.model, last.report) if last.report.is_certificate else {}
                accounts.add(figures, last.report.epochs)
                if figures and figures["duality_gap"] <= gap:
                    gap = figures["duality_gap"]
                    best = last.model, last.report, last.duals() if keep_state else None
                if gap <= trainer.tol:
                    break
    except KeyboardInterrupt:
        if last is None:  # nothing that could be returned
            raise
        is_interrupted = True
    if last is None or not (gap <= trainer.tol or len(accounts.history) == max_iter or is_interrupted):
        return None, last
    model, certificate, state = best or (last.model, None, last.duals() if keep_state else None)
    outcome = Outcome(
        model=model,
        certificate=certificate,
        history=accounts.history,
        is_interrupted=is_interrupted,
        state=state,
        ledger=accounts.ledger(),
    )
    return outcome, last

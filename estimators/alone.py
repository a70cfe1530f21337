"""Fits of little data in this process without a job, where nobody has asked for one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.blas_threads import one_blas_thread
from chicle_elastic.runtime.training.job import Outcome
from chicle_elastic.solvers.base import Report
from chicle_elastic.values import ChunkAccount

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.certified import CertifiedTrainer

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


class Look(Protocol):
    """A certificate; see `chicle_elastic.solvers.linear.alone`."""

    model: Array
    state: Array
    report: Report


@one_blas_thread()
def outcome_of(
    looks: Iterator[Look], trainer: "CertifiedTrainer", chunk_rows: Sequence[int], *, keep_state: bool
) -> tuple[Outcome | None, Look | None]:
    """Take certificates until one is good enough.

    Returns:
        The outcome, None without such a certificate, and the last one that there was.
    """
    accounts, last, is_interrupted = Accounts(chunk_rows), None, False
    is_good = False
    try:
        for last in looks:
            figures = trainer.figures(last.model, last.report)
            accounts.add(figures, last.report.epochs)
            is_good = figures["duality_gap"] <= trainer.tol
            if is_good:
                break
    except KeyboardInterrupt:
        if last is None:  # nothing that could be returned
            raise
        is_interrupted = True
    if last is None or not (is_good or is_interrupted):
        return None, last
    outcome = Outcome(
        model=last.model,
        certificate=last.report,
        history=accounts.history,
        is_interrupted=is_interrupted,
        state=last.state if keep_state else None,
        ledger=accounts.ledger(),
    )
    return outcome, last

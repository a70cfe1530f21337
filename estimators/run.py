"""The fit of an estimator: a job with its callbacks and observers, or none where nobody asked for it."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.blas_threads import one_blas_thread
from chicle_elastic.runtime.training.job import Outcome
from chicle_elastic.values import ChunkAccount
from estimators.watch import CallbackBridge, NoContext, frames_to_the_user, watcher

if TYPE_CHECKING:
    from chicle_elastic.chunks.sources import ChunkSource
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.base import Report, Trainer
    from chicle_elastic.solvers.linear.alone import Look


TASK = NodeId("task-0")


class Data(Protocol):
    """What a job needs to know of the input of a fit."""

    @property
    def source(self) -> "ChunkSource":
        """Where the runtime takes the chunks from."""
        ...

    @property
    def hook_arguments(self) -> dict[str, Any]:
        """`X`, `y` and `metadata` for the hooks of callbacks; empty where there is no X."""
        ...


def end_interrupted(estimator: Any, state: str) -> NoReturn:
    """Warn that Ctrl-C has ended a fit early, and raise KeyboardInterrupt, also where warnings are errors.

    Args:
        estimator: It has the model so far.
        state: How good that is.
    """
    name = getattr(estimator, "_shown_name", type(estimator).__name__)
    try:
        warnings.warn(
            f"{name} was interrupted: after {estimator.n_iter_} iterations {state}. It predicts with its model so far.",
            ConvergenceWarning,
            stacklevel=frames_to_the_user(),
        )
    finally:
        raise KeyboardInterrupt


def gap_words(gap: float, tol: float) -> str:
    """Say how far a linear model may be from the optimum."""
    if gap != gap:
        return "no duality gap is certified yet"
    return f"the relative duality gap is {gap:.1e}, {'above' if gap > tol else 'within'} tol={tol:g}"


def run_job(
    estimator: Any,
    runtime: "Runtime",
    trainer: "Trainer",
    training: Data,
    seed: int,
    *,
    initial_state: "Array | None" = None,
    initial_model: "Array | None" = None,
    keep_state: bool = False,
) -> Outcome:
    """Run the job of a fit.

    Args:
        estimator: Being fitted; its `_predicting_attributes(trainer, training, model, number of iterations)` make what
            it needs to predict.
        runtime: Where.
        trainer: The algorithm.
        training: The data.
        seed: Of the job.
        initial_state: Chunk state to begin with.
        initial_model: Model to begin with.
        keep_state: Whether the outcome is to have the state.
    """
    from chicle_elastic.runtime.training.job import Job
    from estimators.place import has_policies, policies_of

    tol = float(getattr(estimator, "tol", 0.0))
    has_callbacks = bool(getattr(estimator, "_skl_callbacks", ()))
    context: Any = NoContext()
    if has_callbacks or hasattr(estimator, "_parent_callback_ctx"):  # of a meta-estimator
        context = estimator._init_callback_context(max_subtasks=estimator.max_iter)
    context.call_on_fit_task_begin(estimator=estimator, **training.hook_arguments)
    with watcher(
        getattr(estimator, "_shown_name", type(estimator).__name__),
        verbose=estimator.verbose,
        logdir=estimator.logdir,
        max_iter=int(estimator.max_iter),
        tol=tol,
        has_policies=has_policies(estimator, runtime),
        method_on=partial(trainer.method, training.source.schema),
        params=None if estimator.logdir is None else estimator.get_params(deep=False),
    ) as told:
        bridge = CallbackBridge(
            estimator,
            context,
            max_iter=estimator.max_iter,
            tol=tol,
            arguments=training.hook_arguments,
            attributes=partial(estimator._predicting_attributes, trainer, training),
        )
        if has_callbacks:
            bridge.begin()
        outcome = runtime.run(
            Job(
                trainer=trainer,
                source=training.source,
                max_iterations=int(estimator.max_iter),
                seed=seed,
                initial_state=initial_state,
                initial_model=initial_model,
                keep_state=keep_state,
                policies=policies_of(estimator),
                on_iteration=told.on_iteration,
                on_transition=told.on_transition,
                on_model=bridge.on_model if has_callbacks else None,
            )
        )
        bridge.close()
        told.on_end(outcome)
    context.call_on_fit_task_end(
        estimator=estimator,
        reconstruction_attributes=partial(
            estimator._predicting_attributes, trainer, training, outcome.model, len(outcome.history)
        ),
        **training.hook_arguments,
    )
    return outcome


def fit_linear(
    estimator: Any,
    runtime: "Runtime",
    trainer: "Trainer",
    training: Data,
    seed: int,
    **beginning: Any,
) -> Outcome:
    """Fit a linear model: little data without a job, as far as that goes, unless it begins with a model.

    Args:
        estimator, runtime, trainer, training, seed, beginning: As in `run_job`.
    """
    if beginning.get("initial_model") is None:
        keep_state, duals = beginning.get("keep_state", False), beginning.get("initial_state")
        outcome, last = _fit_alone(estimator, trainer, training, seed, keep_state=keep_state, duals=duals)
        if outcome is not None:
            return outcome
        if last is not None and "initial_state" in beginning:
            beginning["initial_state"] = last.duals()
        elif last is not None:
            beginning["initial_model"] = last.model
    return run_job(estimator, runtime, trainer, training, seed, **beginning)


def needs_no_job(estimator: Any) -> bool:
    """Say whether nobody has asked for a job, so that little data need not be one."""
    parent = getattr(estimator, "_parent_callback_ctx", None)  # of a pipeline or search, which may have no callbacks
    has_parents = parent is not None and bool(getattr(parent, "_callbacks", True))
    is_watched = estimator.verbose or estimator.logdir is not None or has_parents
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


def _fit_alone(
    estimator: Any, trainer: "Trainer", training: Data, seed: int, *, keep_state: bool, duals: "Array | None"
) -> tuple[Outcome | None, "Look | None"]:
    """Fit a linear model without a job, as far as coordinate descent goes. Returns the outcome, None where a job has to
    go on, and the last iteration, None where there was none.

    Args:
        estimator: Being fitted.
        trainer: The algorithm.
        training: The data.
        seed: Of the order of visits.
        keep_state: Whether the outcome is to have the duals.
        duals: Those to begin with.
    """
    from chicle_elastic.chunks.sources import ArraySource
    from chicle_elastic.solvers.linear.losses import EpsilonInsensitive
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    source, max_iter = training.source, int(estimator.max_iter)
    if not isinstance(trainer, LinearTrainer | RegressionTrainer):
        return None, None
    descends = isinstance(trainer, LinearTrainer) or isinstance(trainer.loss, EpsilonInsensitive)
    if not (descends and isinstance(source, ArraySource) and needs_no_job(estimator)):
        return None, None
    from chicle_elastic.solvers.linear.alone import looks  # which loads the compiler

    accounts = Accounts(source.chunk_rows)
    last: Look | None = None
    best: tuple[Array, Report, Array | None] | None = None
    is_interrupted, is_converged, gap = False, False, math.inf
    try:
        with one_blas_thread():
            for last in looks(trainer, source, seed=seed, max_iterations=max_iter, initial_state=duals):
                accounts.add(last.figures, last.report.epochs)
                found = last.figures.get("duality_gap", math.inf)
                if last.report.is_certificate and (best is None or found <= gap):
                    gap = found
                    best = last.model, last.report, last.duals() if keep_state else None
                is_converged = trainer.tol > 0.0 and gap <= trainer.tol
                if is_converged:
                    break
    except KeyboardInterrupt:
        if last is None:  # nothing that could be returned
            raise
        is_interrupted = True
    if last is None or not (is_converged or len(accounts.history) == max_iter or is_interrupted):
        return None, last
    model, certificate, state = best or (last.model, None, last.duals() if keep_state else None)
    if "coordinate descent" not in trainer.method(source.schema, 1):  # a job would not have begun with it
        accounts.history.methods = {1: "coordinate descent, because of one task with little data"}
    outcome = Outcome(
        model=model,
        certificate=certificate,
        history=accounts.history,
        is_interrupted=is_interrupted,
        state=state,
        ledger=accounts.ledger(),
    )
    return outcome, last

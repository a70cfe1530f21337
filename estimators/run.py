"""The job of a linear estimator, or of one with a trainer of the user's, with its callbacks and observers."""

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from sklearn.exceptions import ConvergenceWarning

from estimators.watch import CallbackBridge, NoContext, frames_to_the_user, watcher

if TYPE_CHECKING:
    from chicle_elastic.chunks.sources import ChunkSource
    from chicle_elastic.chunks.views import Array
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from chicle_elastic.solvers.base import Trainer


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
) -> "Outcome":
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

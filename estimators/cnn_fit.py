"""Makes the trainer of a `ChicleCNNClassifier` and runs its job, with callbacks and observers.

At the end of each epoch callbacks are told, and early stopping has its say.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from estimators.cnn_defaults import (
    auto_learning_rate,
    auto_local_steps,
    default_rate,
    loss_of,
    optimizer_of,
    schedule_of,
)
from estimators.watch import CallbackBridge, watcher

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from chicle_elastic.solvers.engines.eager import EagerEngine
    from chicle_elastic.solvers.local_sgd import LocalSGDTrainer
    from chicle_elastic.solvers.model_vector import ModelLayout
    from chicle_elastic.solvers.network import Network, Scaling
    from estimators.cnn_inputs import ImageSet


SCORE = "validation_score"
"""The figure of a record at the end of an epoch: accuracy on the samples that are held out."""
ROWS_LOOKED_AT = 64
"""Samples whose outputs are looked at before a fit."""
ITERATIONS_PER_EPOCH = 4
"""Iterations that are allowed for each that an epoch of one task takes: after a crash samples are used again."""


def network_of(estimator: Any, images: Any, scaling: "Scaling | None") -> "Network":
    """Return the network of a fit: the default one, or the user's module."""
    from chicle_elastic.solvers.network import PAPER_CNN, Network

    shape, num_classes = images.input_shape, images.num_outputs
    fits: dict[str, Any] = {"input_shape": shape, "num_classes": num_classes, "target_shape": images.target_shape}
    if estimator.module is not None:
        return Network(module=estimator.module, settings=estimator._params_of("module__"), scaling=scaling, **fits)
    channels, height, width = shape
    settings = {"channels": channels, "height": height, "width": width, "num_classes": num_classes}
    unknown = [name for name in estimator._params_of("module__") if name not in settings]
    if unknown:
        raise UsageError(f"the default network has no arguments to be set, got module__{unknown[0]}; pass a module")
    return Network(module=PAPER_CNN, settings=settings, scaling=scaling, **fits)


def trainer_of(
    estimator: Any,
    network: "Network",
    images: "ImageSet",
    *,
    seed: int,
    epochs: int,
    num_samples: int,
    most_tasks: int,
    num_threads: int,
) -> "LocalSGDTrainer":
    """The trainer of a fit that uses `num_samples` samples, those of earlier calls included."""
    from chicle_elastic.solvers.local_sgd import LocalSGDTrainer

    optimizer, settings = optimizer_of(estimator)
    rate = estimator.learning_rate
    if rate == "auto" and callable(optimizer):
        rate = default_rate(optimizer) or "auto"
    if rate == "auto":
        kind = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", "").lower()
        rate = auto_learning_rate(
            num_samples, batch_size=int(estimator.batch_size), momentum=float(estimator.momentum), optimizer=kind
        )
    (schedule, schedule_settings), steps = schedule_of(estimator), epochs
    if estimator.schedule_each == "step":
        steps = epochs * math.ceil(images.source.schema.num_rows / int(estimator.batch_size))
    local_steps = estimator.local_steps
    if local_steps == "auto":
        local_steps = auto_local_steps(num_samples, batch_size=int(estimator.batch_size), num_tasks=most_tasks)
    return LocalSGDTrainer(
        network=network,
        batch_size=int(estimator.batch_size),
        local_steps=int(local_steps),
        learning_rate=float(rate),
        momentum=float(estimator.momentum),
        optimizer=optimizer,
        optimizer_settings=settings,
        weight_decay=float(estimator.weight_decay),
        lr_scaling=estimator.lr_scaling,
        decay=float(estimator.decay),
        schedule=schedule,
        schedule_settings=schedule_settings,
        schedule_steps=steps,
        outer_momentum="auto" if estimator.outer_momentum == "auto" else float(estimator.outer_momentum),
        outer_learning_rate=float(estimator.outer_learning_rate),
        max_epochs=epochs,
        seed=seed,
        class_weights=None if images.class_weights is None else tuple(images.class_weights.tolist()),
        mean_weight=images.mean_weight,
        device=estimator.device,
        kernels=estimator.kernels,
        augment=estimator.augment,
        num_threads=num_threads,
        loss=loss_of(estimator, images),
        max_grad_norm=math.inf if estimator.max_grad_norm is None else float(estimator.max_grad_norm),
        precision=estimator.precision,
        compile=estimator.compile,
    )


def run_job(
    estimator: Any,
    runtime: "Runtime",
    trainer: "LocalSGDTrainer",
    images: "ImageSet",
    layout: "ModelLayout",
    *,
    seed: int,
    first: Array | None,
) -> tuple["Outcome", Array | None]:
    """Train.

    Args:
        estimator: Being fitted; gets the scores of early stopping.
        runtime: Where.
        trainer: What.
        images: Samples, and those that are held out.
        layout: Of the models.
        seed: Of the job.
        first: ndarray of shape (num_parameters,) or None. Model to begin with.

    Returns:
        The outcome of the job; and the best model by early stopping, ndarray of shape (num_parameters,), or None.
    """
    from chicle_elastic.runtime.training.job import Job
    from estimators.place import has_policies, policies_of

    context = estimator._init_callback_context(max_subtasks=trainer.max_epochs)
    context.call_on_fit_task_begin(estimator=estimator, **images.hook_arguments)

    def attributes(model: Array, _: int) -> dict[str, Any]:
        return estimator._predicting_attributes(trainer.network, images, layout, model)

    bridge = EpochBridge(
        estimator,
        context,
        max_iter=trainer.max_epochs,
        tol=0.0,
        arguments=images.hook_arguments,
        attributes=attributes,
    )
    stopper = _early_stopping(estimator, trainer, images, layout)
    observers = []
    if getattr(estimator, "_skl_callbacks", ()):
        bridge.begin()
        observers.append(bridge.on_model)

    steps = images.source.schema.num_rows / (trainer.batch_size * trainer.local_steps)
    most = trainer.max_epochs * math.ceil(steps + 1)
    name = type(estimator).__name__
    with watcher(
        name,
        verbose=estimator.verbose,
        logdir=estimator.logdir,
        max_iter=most,
        max_epochs=trainer.max_epochs,
        has_policies=has_policies(estimator, runtime),
        params=estimator.get_params(deep=False),
    ) as told:

        def on_model(record: "IterationRecord", model: Array) -> bool:
            answers = [] if stopper is None else [stopper.on_model(record, model)]
            if stopper is not None and told.on_iteration is not None:
                told.on_iteration(stopper.scored(record))
            answers += [observe(record, model) for observe in observers]  # all, also after one asked to stop
            return any(answers)

        outcome = runtime.run(
            Job(
                trainer=trainer,
                source=images.source,
                max_iterations=ITERATIONS_PER_EPOCH * most,
                seed=seed,
                initial_model=first,
                policies=policies_of(estimator),
                on_iteration=told.on_iteration if stopper is None else None,  # else once it has a score
                on_transition=told.on_transition,
                on_model=on_model if observers or stopper is not None else None,
            )
        )
        bridge.close()
        told.on_end(outcome)
    if stopper is not None:
        outcome.history = stopper.scored_history(outcome.history)
    if stopper is not None and stopper.scores:
        estimator.validation_scores_ = stopper.scores
        estimator.best_validation_score_ = max(stopper.scores)
    best = None if stopper is None else stopper.best_model
    model = outcome.model if best is None else best
    context.call_on_fit_task_end(
        estimator=estimator, reconstruction_attributes=lambda: attributes(model, 0), **images.hook_arguments
    )
    return outcome, best


def try_augmentation(engine: "EagerEngine", trainer: "LocalSGDTrainer", images: "ImageSet") -> None:
    """Refuse a function that does not return such images, before anything is started.

    Raises:
        UsageError: It raised, or returned something else.
    """
    from chicle_elastic.solvers.engines.predict import samples_of

    if trainer.augment is not None:
        rows = _first_rows(images, trainer.batch_size)
        engine.try_augmentation(samples_of(rows, images.input_shape, trainer.network))


def warn_of_probabilities(module: Any, network: "Network", images: "ImageSet", *, has_loss: bool) -> None:
    """Warn where a module returns probabilities: the cross-entropy and `predict_proba` take the softmax of outputs.

    Args:
        module: Of the user.
        network: Described.
        images: Of the fit.
        has_loss: Whether the loss is the user's, too.
    """
    from chicle_elastic.solvers.engines.predict import logits

    scaling = network.scaling_of(is_byte=images.is_byte)
    outputs = logits(module.eval(), _first_rows(images, ROWS_LOOKED_AT), images.input_shape, scaling=scaling)
    if np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-4):
        why = (
            "predict_proba takes the softmax of them, whatever the loss; leave out the softmax at the end of the "
            "module, and give a loss of logits."
            if has_loss
            else "The loss expects logits and takes their softmax itself; leave out the softmax at the end of the "
            "module, which learns slowly and badly otherwise."
        )
        warnings.warn(
            f"the outputs of the module {type(module).__name__} look like probabilities: they are at least 0 and "
            f"sum to 1. {why}",
            UserWarning,
            stacklevel=5,
        )


def _first_rows(images: "ImageSet", count: int) -> Array:
    from chicle_elastic.chunks.rows import matrix_of
    from estimators.streaming import chunks_of

    rows: Array = matrix_of(next(iter(chunks_of(images.source))).rows)
    return rows[:count]


def _early_stopping(
    estimator: Any, trainer: "LocalSGDTrainer", images: "ImageSet", layout: Any
) -> "EarlyStopping | None":
    """What ends the fit when the samples that are held out are not told apart any better."""
    if images.validation is None:
        return None
    rows, targets, weights = images.validation

    def score(model: Array) -> float:
        from chicle_elastic.solvers.engines.predict import filled_module, logits

        module = filled_module(trainer.network, layout.w(model), layout.buffers(model))
        scaling = trainer.network.scaling_of(is_byte=images.is_byte)
        outputs = logits(module, rows, images.input_shape, scaling=scaling)
        return float(estimator._score_of_outputs(outputs, targets, weights))

    return EarlyStopping(score, tol=float(estimator.tol), patience=int(estimator.n_iter_no_change))


class EpochBridge(CallbackBridge):
    """One subcontext of the fit's callback context per epoch."""

    task_name = "epoch"

    def _ended(self, record: IterationRecord) -> int | None:
        return round(record.figures["epoch"]) if "epoch" in record.figures else None


class EarlyStopping:
    """Scores every epoch on samples that were held out, and remembers the best.

    Args:
        score: Takes a model, returns its score.
        tol: Least improvement that counts.
        patience: Epochs in a row without one that end the fit.

    Attributes:
        scores: One per epoch.
        best_model: That of the best epoch.
    """

    def __init__(self, score: Callable[[Array], float], *, tol: float, patience: int) -> None:
        self._score, self._tol, self._patience = score, tol, patience
        self._num_without = 0
        self._goal = -np.inf
        self._score_of: dict[int, float] = {}
        self.scores: list[float] = []
        self.best_model: Array | None = None

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Score an epoch that has ended.

        Returns:
            Whether the score has not improved for long enough.
        """
        if "epoch" not in record.figures:
            return False
        score = self._score(model)
        if not self.scores or score > max(self.scores):
            self.best_model = np.array(model)
        self.scores.append(score)
        self._num_without = 0 if score > self._goal + self._tol else self._num_without + 1
        self._goal = max(self._goal, score)
        self._score_of[round(record.figures["epoch"])] = score
        return self._num_without >= self._patience

    def scored(self, record: IterationRecord) -> IterationRecord:
        """The record, with the score where an epoch has ended."""
        score = self._score_of.get(round(record.figures.get("epoch", -1.0)))
        return record if score is None else replace(record, figures={**record.figures, SCORE: score})

    def scored_history(self, history: History) -> History:
        """A history with the scores of its epochs."""
        scored = History(self.scored(record) for record in history)
        scored.members, scored.methods = history.members, history.methods
        for transition in history.transitions:
            scored.note(transition)
        return scored

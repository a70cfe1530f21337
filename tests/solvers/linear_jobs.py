"""Jobs of the linear trainer on small data, and what NumPy makes of X, y and the duals that they came to."""

import itertools
import warnings
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Summed, Update
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses, upper_bounds
from chicle_elastic.solvers.linear.trainer import LinearTrainer

CHUNK_BYTES = 2048
LOSSES = ["hinge", "squared_hinge", "logistic"]
SMOOTH = ["squared_hinge", "logistic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows, class codes and weights.

    Attributes:
        X: ndarray or CSR matrix of shape (num_rows, num_features), float64.
        y: Class codes, shape (num_rows,), int32.
        weights: Of the rows, shape (num_rows,), or None.
    """

    X: Array | sparse.csr_matrix
    y: Array
    weights: Array | None = None

    def source(self, num_tasks: int) -> ArraySource:
        """Many chunks, so that tasks can come and go."""
        return ArraySource(
            self.X, self.y, weights=self.weights, max_tasks=max(2, num_tasks), chunk_bytes=CHUNK_BYTES, seed=3
        )

    def job(self, trainer: LinearTrainer, *, num_tasks: int = 4, **fields: Any) -> Job:
        """To its end; the duals are kept."""
        return Job(
            trainer=trainer,
            source=self.source(num_tasks),
            **{"max_iterations": 400, "seed": 5, "keep_state": True, **fields},
        )

    def run(self, trainer: LinearTrainer, runtime: InProcess | int = 1, **fields: Any) -> Outcome:
        """On so many tasks in this process."""
        runtime = InProcess(num_tasks=runtime) if isinstance(runtime, int) else runtime
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an overflow or a division by zero is a fault
            return runtime.run(self.job(trainer, num_tasks=runtime.most_tasks(), **fields))

    def dense(self) -> Array:
        """X as an ndarray."""
        return self.X if isinstance(self.X, np.ndarray) else self.X.toarray()


def problem(
    *,
    rows: int = 240,
    features: int = 7,
    classes: int = 2,
    density: float = 1.0,
    seed: int = 0,
    noise: float = 1.0,
    weighted: bool = False,
) -> Problem:
    """Classes that overlap, so that many rows have a margin below 1; sparse where the density is below 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    if density < 1.0:
        X *= rng.random(size=X.shape) < density
    scores = X @ rng.normal(size=(features, classes)) / np.sqrt(features * density)
    y = np.argmax(scores + noise * rng.normal(size=scores.shape), axis=1)
    y[:classes] = np.arange(classes)
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], size=rows) if weighted else None
    return Problem(X=sparse.csr_matrix(X) if density < 1.0 else X, y=y.astype(np.int32), weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """Per output, shape (outputs,), float64, but for arrays of the shape of w, (outputs, num_features + 1).

    Attributes:
        primal: P at w.
        dual: D of the duals.
        w_of_duals: w(alpha).
        rounding: How exact w(alpha) can be: the machine precision times the sizes of what is summed.
    """

    primal: Array
    dual: Array
    w_of_duals: Array
    rounding: Array

    @property
    def gap(self) -> float:
        """Largest (P - D) / P."""
        return float(((self.primal - self.dual) / self.primal).max())


def recompute(problem: Problem, trainer: LinearTrainer, model: Array, state: Array) -> Recomputed:
    """P at the model and D of the duals, from X and y and nothing else; the duals have to be feasible.

    Args:
        problem: The data.
        trainer: Loss, C and the like.
        model: w, flattened.
        state: Duals by global row id, shape (num_rows, outputs, 1).
    """
    loss, duals = Loss.named(trainer.loss), state[:, :, 0]
    Z = np.column_stack([problem.dense(), np.full(len(problem.y), trainer.intercept_scaling)])
    upper = upper_bounds(trainer.C, problem.y, problem.weights, trainer.class_weights)
    assert duals.min() >= 0
    assert loss is Loss.SQUARED_HINGE or (duals <= loss.most_slope * upper[:, None] * (1 + 1e-12)).all()
    assert not duals[upper == 0].any()
    found = []
    for k, w in enumerate(model.reshape(duals.shape[1], -1)):
        signs = np.where(problem.y == (1 if duals.shape[1] == 1 else k), 1.0, -1.0)
        w_of_duals = Z.T @ (duals[:, k] * signs)
        P = 0.5 * w @ w + primal_losses(loss, signs * (Z @ w), upper).sum()
        D = dual_values(loss, duals[:, k], upper).sum() - 0.5 * w_of_duals @ w_of_duals
        rounding = 8 * np.finfo(np.float64).eps * (np.abs(Z).T @ duals[:, k])
        found.append((P, D, w_of_duals, rounding))
    primal, dual, ws, rounding = (np.array(values) for values in zip(*found, strict=True))
    return Recomputed(primal=primal, dual=dual, w_of_duals=ws, rounding=rounding)


def assert_true(problem: Problem, trainer: LinearTrainer, outcome: Outcome) -> Recomputed:
    """What is certified is what NumPy finds: P and D of each output, and so the gap."""
    assert outcome.certificate is not None
    assert outcome.state is not None
    assert np.isfinite(outcome.model).all()
    assert outcome.certificate.iteration == outcome.history[-1].iteration
    found = recompute(problem, trainer, outcome.model, outcome.state)
    primal, dual = trainer.primal_and_dual(outcome.model, outcome.certificate)
    np.testing.assert_allclose(primal, found.primal, rtol=1e-12)
    # D is a difference of sums as large as P, where it is near 0; and no more exact than w of the duals.
    rounding = (found.rounding * np.abs(found.w_of_duals)).sum(axis=1).max()
    np.testing.assert_allclose(dual, found.dual, rtol=1e-12, atol=1e-12 * found.primal.max() + rounding)
    gap = trainer.relative_gap(outcome.model, outcome.certificate)
    assert abs(gap - found.gap) <= 1e-11
    assert outcome.history[-1].figures["duality_gap"] == gap
    return found


def assert_optimal(problem: Problem, trainer: LinearTrainer, outcome: Outcome) -> None:
    """Certified to be so by NumPy's own gap, and w is that of the duals, or the duals are those of w."""
    found = assert_true(problem, trainer, outcome)
    assert -1e-12 <= found.gap <= trainer.tol * (1 + 1e-6), outcome.reason
    w = outcome.model.reshape(found.w_of_duals.shape)
    is_of_duals = (np.abs(w - found.w_of_duals) <= 1e-10 * np.abs(w).max() + found.rounding).all(axis=1)
    if ends_with_products(trainer, outcome):  # the gap of w and its duals is half of their squared distance
        half = 0.5 * np.square(w - found.w_of_duals).sum(axis=1)
        is_of_duals |= np.abs(found.primal - found.dual - half) <= 1e-11 * found.primal
    # Duals of a hinge whose corners are round are bounded, and may make a w that is not good enough.
    assert is_of_duals.all() or (trainer.loss == "hinge" and is_newton_job(outcome))


def is_newton_job(outcome: Outcome) -> bool:
    """Whether Newton's method was at work in the end."""
    return outcome.certificate is not None and NewtonState.is_of(outcome.certificate.progress)


def ends_with_products(trainer: LinearTrainer, outcome: Outcome) -> bool:
    """Whether Newton's method found its steps by conjugate gradients."""
    if not is_newton_job(outcome) or trainer.loss == "hinge":
        return False
    assert outcome.certificate is not None
    return not NewtonState.look(outcome.certificate.progress).is_exact


def with_changes(trainer: LinearTrainer, **changes: Any) -> LinearTrainer:
    """Another trainer."""
    return replace(trainer, **changes)


class CountingClock:
    """Tells how often it was looked at before."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def now(self) -> float:
        """As a number of seconds."""
        return float(next(self._looks))


class Tasks:
    """Tasks that a test drives itself, pass by pass."""

    def __init__(self, data: Problem, trainer: LinearTrainer, num_tasks: int) -> None:
        source, mailboxes = data.source(num_tasks), Mailboxes()
        spec = trainer.state(source.schema)
        self.data, self.trainer, self.schema = data, trainer, source.schema
        self.tasks: list[UniTask] = []
        for k in range(num_tasks):
            context = LocalContext(f"task-{k}", np.random.default_rng(k), mailboxes)
            task = UniTask(NodeId(context.name), trainer, context, MonotonicClock())
            for info in source.infos(spec)[k::num_tasks]:
                task.hold(source.load(info.id, spec))
            task.attach(list(task.held), [])
            self.tasks.append(task)
        self.model = trainer.init(self.schema, np.random.default_rng(0))
        self.progress = NO_PROGRESS
        self.iteration = 0

    def iterate(self, stopped: Container[int] = (), *, after: float = 0) -> list[Update]:
        """One pass, in which some tasks are told to stop at their first look, or after some; their updates."""
        self.iteration += 1
        begun = self.trainer.begin(self.schema, self.model, self.progress, len(self.tasks))
        updates = []
        for k, task in enumerate(self.tasks):
            budget = Budget(
                clock=CountingClock() if k in stopped else MonotonicClock(),
                deadline_s=after if k in stopped else None,
                num_tasks=len(self.tasks),
                iteration=self.iteration,
                progress=begun,
                rank=k,
                num_ranks=len(self.tasks),
            )
            updates.append(task.solve(self.model, budget)[0])
        summed = Summed(
            delta=np.sum([update.delta for update in updates], axis=0),
            weight=sum(update.weight for update in updates),
            metrics={name: sum(update.metrics[name] for update in updates) for name in updates[0].metrics},
            num_tasks=len(self.tasks),
        )
        assert len(summed.delta) == self.trainer.update_size(self.model, begun)
        self.model, self.progress = self.trainer.advance(self.model, begun, summed)
        return updates

    @property
    def state(self) -> NewtonState:
        """Of all outputs."""
        return NewtonState.look(self.progress)

    def duals(self) -> Array:
        """By row id, of all tasks."""
        chunks = [chunk for task in self.tasks for chunk in task.held.values()]
        order = np.argsort(np.concatenate([chunk.row_ids for chunk in chunks]))
        return np.concatenate([chunk.state for chunk in chunks])[order]

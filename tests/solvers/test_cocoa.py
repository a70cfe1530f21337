"""CoCoA over several tasks: safe sums, exact certificates, interruption, and state that travels with its samples."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from chicle_elastic.chunks.views import Chunk, DataSchema
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Budget, Report, StopFlag
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.virtual_clock import VirtualClock
from tests.solvers.reference import primal_and_dual


class Problem:
    """Scaled breast_cancer in chunks of 32 rows."""

    def __init__(self, weights=None):
        X, y = load_breast_cancer(return_X_y=True)
        self.X = np.ascontiguousarray((X - X.mean(0)) / X.std(0))
        self.y = y.astype(np.int32)
        self.weights = weights
        self.schema = DataSchema(
            kind="dense", dtype="float64", num_rows=len(y), num_features=30, target_dtype="int32", num_classes=2
        )

    def chunks(self, trainer):
        """Fresh chunks."""
        spec = trainer.state(self.schema)
        bounds = [*range(0, len(self.y), 32), len(self.y)]
        return [
            Chunk(
                id=ChunkId(number),
                rows=self.X[begin:end],
                targets=self.y[begin:end],
                weights=None if self.weights is None else self.weights[begin:end],
                row_ids=np.arange(begin, end),
                state=spec.zeros(end - begin),
                notes=spec.fresh_notes(0),
            )
            for number, (begin, end) in enumerate(pairwise(bounds))
        ]


def make_tasks(trainer, chunks, num_tasks, clock=None):
    """Tasks with chunks dealt round robin."""
    mailboxes = Mailboxes()
    tasks = []
    for k in range(num_tasks):
        context = LocalContext(f"task-{k}", np.random.default_rng(k), mailboxes)
        task = UniTask(NodeId(context.name), trainer, context, clock or MonotonicClock())
        for chunk in chunks[k::num_tasks]:
            task.hold(chunk)
        task.attach(list(task.held), [])
        tasks.append(task)
    return tasks


def iterate(trainer, tasks, model, iteration):
    """One iteration of all tasks, merged."""
    clock = MonotonicClock()
    updates = [task.solve(model, Budget(clock=clock, num_tasks=len(tasks), iteration=iteration))[0] for task in tasks]
    return trainer.merge(model, sum(update.delta for update in updates), float(len(tasks)))


def gap(trainer, problem, chunks, model):
    """Relative duality gap from first principles: X, y and the duals, in float64."""
    signs = np.where(problem.y == 1, 1.0, -1.0)
    alpha = np.concatenate([chunk.state for chunk in chunks])[:, 0, 0]
    X = np.column_stack([problem.X, np.full(len(signs), trainer.intercept_scaling)])
    w = X.T @ (alpha * signs)
    np.testing.assert_allclose(model, w, atol=1e-10 * np.abs(w).max())
    upper = np.full(len(signs), trainer.C) if problem.weights is None else trainer.C * problem.weights
    primal, dual = primal_and_dual(Loss.named(trainer.loss), X @ w, signs, alpha, upper, w @ w)
    return (primal - dual) / primal


def test_a_certificate_is_the_gap_at_the_rebuilt_model():
    """recover + rebuild + evaluate on three tasks give the gap that NumPy gives."""
    problem = Problem(weights=np.random.default_rng(1).uniform(0, 2, size=569))
    trainer = LinearTrainer(C=0.1, tol=1e-9)
    chunks = problem.chunks(trainer)
    tasks = make_tasks(trainer, chunks, 3)
    model = iterate(trainer, tasks, trainer.init(problem.schema, np.random.default_rng(0)), 1)
    drifted = model + 1e-3
    model = trainer.rebuild(drifted, sum(task.recover(drifted) for task in tasks), NO_PROGRESS)
    updates = [task.evaluate(model, NO_PROGRESS) for task in tasks]
    metrics = {"gap/0": 0.0}
    for name in ("loss/0", "dual/0"):
        metrics[name] = sum(update.metrics[name] for update in updates)
    report = Report(
        iteration=1,
        epochs=1.0,
        samples=569,
        num_tasks=3,
        metrics=metrics,
        is_certificate=True,
        max_iterations=10,
        rebuilt=sum(update.delta for update in updates),
    )
    assert trainer.relative_gap(model, report) == pytest.approx(gap(trainer, problem, chunks, model), rel=1e-9)
    assert trainer.verdict(model, report).action is Action.GO_ON


def test_only_a_certificate_stops_a_run():
    """An estimate of zero asks for a certificate; a partial objective (lost chunks) does not even do that."""
    trainer = LinearTrainer(tol=1e-3)
    model = np.ones(4)
    base = {"iteration": 5, "epochs": 5.0, "samples": 9, "num_tasks": 1, "max_iterations": 100}
    metrics = {"loss/0": 1.0, "gap/0": 0.0, "dual/0": 4.0}

    def action(**changes):
        return trainer.verdict(model, Report(**{**base, "metrics": metrics, "is_certificate": False, **changes})).action

    assert action() is Action.CERTIFY
    assert action(is_complete=False) is Action.GO_ON
    assert action(is_certificate=True, metrics=metrics | {"dual/0": 5.0}) is Action.STOP
    assert action(is_certificate=True, is_complete=False, metrics=metrics | {"dual/0": 5.0}) is Action.GO_ON
    assert action(is_certificate=True) is Action.GO_ON
    assert action(iteration=100, metrics=metrics | {"gap/0": 9.0}) is Action.CERTIFY
    assert action(iteration=100, is_certificate=True) is Action.STOP


def test_a_certificate_that_was_not_good_enough_is_not_repeated_at_once():
    """The next estimate, corrected by what that one found, has to be below tol by a margin; the first need not."""
    trainer = LinearTrainer(tol=1e-3)

    def action(gap, last_certificate):
        # P = dual - |w|^2 / 2 + gap = 1, so that the estimate is the relative gap; the correction is 1.
        report = Report(
            iteration=10,
            epochs=10.0,
            samples=9,
            num_tasks=1,
            max_iterations=100,
            metrics={"loss/0": 1.0, "gap/0": gap, "dual/0": 3.0 - gap},
            is_certificate=False,
            last_certificate=last_certificate,
            last_figures={"duality_gap_estimate": 2e-3, "duality_gap": 2e-3},
        )
        return trainer.verdict(np.ones(4), report).action

    assert action(0.9e-3, last_certificate=0) is Action.CERTIFY
    assert action(0.9e-3, last_certificate=8) is Action.GO_ON
    assert action(0.7e-3, last_certificate=8) is Action.CERTIFY


def kernel_threads():
    """Threads that solvers started; other libraries may keep theirs."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("chicle-kernel")]


def test_threads_split_the_pass_and_damp_their_steps(monkeypatch):
    """Two threads visit every row once, and w = w(alpha) still holds."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.local.MIN_VALUES_PER_THREAD", 1)
    problem = Problem()
    trainer = LinearTrainer(C=0.01, num_threads=2)
    chunks = problem.chunks(trainer)
    (task,) = make_tasks(trainer, chunks, 1)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    try:
        for iteration in range(1, 31):
            model = iterate(trainer, [task], model, iteration)
        assert len(kernel_threads()) == 2
        assert gap(trainer, problem, chunks, model) < 1e-3
    finally:
        task.close()
    assert not kernel_threads()


def num_left_out(task):
    """Duals that the passes of a task leave out."""
    return sum(int(note.left_out.sum()) for note in task._solver.local.tables.notes)


def test_a_certificate_makes_the_next_pass_look_at_every_row(monkeypatch):
    """Shrinking guesses; without this a row left out wrongly could keep the certified gap above tol for ever."""
    monkeypatch.setattr("chicle_elastic.solvers.kernels.descent.MOST_CACHED_VALUES", 0)
    problem = Problem()
    trainer = LinearTrainer(C=0.01, tol=0.0, algorithm="cocoa")
    (task,) = make_tasks(trainer, problem.chunks(trainer), 1)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    for iteration in range(1, 6):
        model = iterate(trainer, [task], model, iteration)
    descent = task._solver._coordinates._descent

    def visits(iteration):
        before = descent.visits
        iterate(trainer, [task], model, iteration)
        return descent.visits - before

    assert visits(6) <= len(problem.y) - num_left_out(task) * 0.9 < 0.95 * len(problem.y)
    task.evaluate(model, NO_PROGRESS)
    assert visits(7) == len(problem.y)


def move(chunk, giver, taker):
    """A chunk changes hands."""
    giver.attach([], [chunk.id])
    giver.free(chunk.id)
    taker.hold(chunk)
    taker.attach([chunk.id], [])


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_chunks_that_move_all_the_time_converge_although_rows_are_left_out(loss):
    """Six tasks, one of them replaced now and then; every iteration chunks change hands."""
    problem = Problem()
    trainer = LinearTrainer(loss=loss, C=0.01, tol=0.0)
    chunks = problem.chunks(trainer)
    tasks = make_tasks(trainer, chunks, 6)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    rng = np.random.default_rng(3)
    for iteration in range(1, 501):
        for _ in range(3):
            giver, taker = rng.choice(6, size=2, replace=False)
            if len(tasks[giver].held) > 1:
                move(tasks[giver].held[rng.choice(list(tasks[giver].held))], tasks[giver], tasks[taker])
        if iteration % 25 == 0:
            (newcomer,) = make_tasks(trainer, [], 1)
            leaver = int(rng.integers(6))
            for chunk in list(tasks[leaver].held.values()):
                move(chunk, tasks[leaver], newcomer)
            tasks[leaver] = newcomer
        model = iterate(trainer, tasks, model, iteration)
        if iteration % 50 == 0:  # as in a job: what was left out is looked at again
            for task in tasks:
                task.evaluate(model, NO_PROGRESS)
    assert gap(trainer, problem, chunks, model) < 1e-6


def test_a_stop_flag_makes_the_update_partial_and_consistent():
    """Nothing is processed after the flag, and what was processed is in the delta."""
    problem = Problem()
    trainer = LinearTrainer(C=0.01)
    chunks = problem.chunks(trainer)
    (task,) = make_tasks(trainer, chunks, 1)
    stop = StopFlag()
    stop.set()
    model = trainer.init(problem.schema, np.random.default_rng(0))
    update, _ = task.solve(model, Budget(clock=MonotonicClock(), num_tasks=1, iteration=1, stop=stop))
    assert update.is_partial
    assert update.samples == 0
    assert not update.delta.any()
    stop.clear()
    update, _ = task.solve(model, Budget(clock=MonotonicClock(), num_tasks=1, iteration=2, stop=stop, samples=100))
    assert update.is_partial
    assert 96 <= update.samples <= 104
    gap(trainer, problem, chunks, update.delta)


def test_a_passed_deadline_ends_the_pass():
    """The budget's clock is asked, not the machine's."""
    problem = Problem()
    trainer = LinearTrainer(C=0.01)
    clock = VirtualClock(10.0)
    (task,) = make_tasks(trainer, problem.chunks(trainer), 1, clock)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    update, _ = task.solve(model, Budget(clock=clock, num_tasks=1, iteration=1, deadline_s=9.0))
    assert (update.samples, update.is_partial) == (0, True)
    update, _ = task.solve(model, Budget(clock=clock, num_tasks=1, iteration=1, deadline_s=11.0))
    assert (update.samples, update.is_partial) == (569, False)


class ImpatientClock:
    """A second passes between two looks."""

    def __init__(self):
        self.looks = 0.0

    def now(self):
        """Seconds, as many as there were looks."""
        self.looks += 1.0
        return self.looks


@pytest.mark.parametrize("deadline_s", [15.0, 25.0, 60.0])
def test_a_deadline_between_the_passes_of_one_iteration_leaves_w_consistent(deadline_s):
    """Little data is visited several times in an iteration; rows count once, and what was done so far is kept."""
    problem = Problem()
    trainer = LinearTrainer(C=1.0, tol=1e-9)
    chunks = problem.chunks(trainer)
    (task,) = make_tasks(trainer, chunks, 1)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    clock = ImpatientClock()
    update, _ = task.solve(model, Budget(clock=clock, num_tasks=1, iteration=1, deadline_s=deadline_s))
    assert (update.samples, update.is_partial) == (569, False)
    assert gap(trainer, problem, chunks, update.delta) < 1.0


def test_one_iteration_on_little_data_is_worth_many_passes():
    """The runtime takes longer between two iterations than such a pass does; several tasks agree after each."""
    gaps = []
    for num_tasks in (1, 2):
        problem = Problem()
        trainer = LinearTrainer(C=0.01, tol=1e-4)
        chunks = problem.chunks(trainer)
        tasks = make_tasks(trainer, chunks, num_tasks)
        model = iterate(trainer, tasks, trainer.init(problem.schema, np.random.default_rng(0)), 1)
        gaps.append(gap(trainer, problem, chunks, model))
    assert gaps[0] < 0.3 * gaps[1]


def test_a_task_without_chunks_changes_nothing():
    """b_k = 0 is allowed: a node may be a member before it holds data."""
    problem = Problem()
    trainer = LinearTrainer()
    (task,) = make_tasks(trainer, [], 1)
    model = trainer.init(problem.schema, np.random.default_rng(0))
    update, _ = task.solve(model, Budget(clock=MonotonicClock(), num_tasks=2, iteration=1))
    assert update.samples == 0
    assert not update.delta.any()
    assert not task.recover(model).any()
    assert not task.evaluate(model, NO_PROGRESS).metrics

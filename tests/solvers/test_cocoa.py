"""CoCoA over several tasks: safe sums, exact certificates, interruption, and state that travels with its samples."""

import threading

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Budget, Report, StopFlag
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import CountingClock, Problem, Tasks, recompute


def tasks_of(trainer, num_tasks=1):
    """Scaled breast_cancer on some tasks."""
    X, y = load_breast_cancer(return_X_y=True)
    return Tasks(Problem(X=(X - X.mean(0)) / X.std(0), y=y.astype(np.int32)), trainer, num_tasks)


def gap(tasks, model):
    """Relative duality gap from X, y and the duals alone; the model is that of the duals."""
    found = recompute(tasks.data, tasks.trainer, model, tasks.duals())
    np.testing.assert_allclose(model, found.w_of_duals[0], atol=1e-10 * np.abs(found.w_of_duals).max())
    return found.gap


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
    monkeypatch.setattr("chicle_elastic.solvers.linear.local.MOST_CACHED_VALUES", 2)
    tasks = tasks_of(LinearTrainer(C=0.01, num_threads=2, algorithm="cocoa"))
    try:
        for _ in range(30):
            tasks.iterate()
        assert len(kernel_threads()) == 2
        assert gap(tasks, tasks.model) < 1e-3
    finally:
        tasks.tasks[0].close()
    assert not kernel_threads()


def test_a_certificate_makes_the_next_pass_look_at_every_row(monkeypatch):
    """Shrinking guesses; without this a row left out wrongly could keep the certified gap above tol for ever."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.tables.MOST_CACHED_VALUES", 0)
    tasks = tasks_of(LinearTrainer(C=0.01, tol=0.0, algorithm="cocoa"))
    for _ in range(5):
        tasks.iterate()
    (task,) = tasks.tasks
    descent = task._solver._coordinates._descent

    def visits():
        before = descent.visits
        tasks.iterate()
        return descent.visits - before

    num_left_out = sum(int(note.left_out.sum()) for note in task._solver.local.tables.notes)
    assert visits() <= 569 - num_left_out * 0.9 < 0.95 * 569
    task.evaluate(tasks.model, NO_PROGRESS)
    assert visits() == 569


def solved(tasks, iteration=1, **fields):
    """The update of the first task."""
    budget = Budget(**{"clock": MonotonicClock(), "num_tasks": 1, "iteration": iteration, **fields})
    return tasks.tasks[0].solve(tasks.model, budget)[0]


def test_a_stop_flag_makes_the_update_partial_and_consistent():
    """Nothing is processed after the flag, and what was processed is in the delta."""
    tasks, stop = tasks_of(LinearTrainer(C=0.01)), StopFlag()
    stop.set()
    update = solved(tasks, stop=stop)
    assert (update.samples, update.is_partial) == (0, True)
    assert not update.delta.any()
    stop.clear()
    update = solved(tasks, 2, stop=stop, samples=100)
    assert update.is_partial
    assert 96 <= update.samples <= 104
    gap(tasks, update.delta)


@pytest.mark.parametrize("deadline_s", [15.0, 25.0, 60.0])
def test_a_deadline_between_the_passes_of_one_iteration_leaves_w_consistent(deadline_s):
    """Little data is visited several times in an iteration; rows count once, and what was done so far is kept."""
    tasks = tasks_of(LinearTrainer(C=1.0, tol=1e-9))
    update = solved(tasks, clock=CountingClock(), deadline_s=-1.0)
    assert (update.samples, update.is_partial) == (0, True)
    update = solved(tasks, 2, clock=CountingClock(), deadline_s=deadline_s)
    assert (update.samples, update.is_partial) == (569, False)
    assert gap(tasks, update.delta) < 1.0


def test_a_task_without_chunks_changes_nothing():
    """b_k = 0 is allowed: a node may be a member before it holds data."""
    tasks = tasks_of(LinearTrainer())
    tasks.tasks[0].attach([], list(tasks.tasks[0].held))
    update = solved(tasks)
    assert update.samples == 0
    assert not update.delta.any()
    assert not tasks.tasks[0].recover(tasks.model).any()
    assert not tasks.tasks[0].evaluate(tasks.model, NO_PROGRESS).metrics

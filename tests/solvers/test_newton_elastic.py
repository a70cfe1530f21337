"""Newton's method while tasks come and go, are stopped, and go on from a checkpoint."""

import dataclasses

import numpy as np
import pytest

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.solvers.linear import local, methods, rows
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton import solver
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import LOSSES, SMOOTH, Tasks, assert_optimal, is_newton_job, problem

pytestmark = pytest.mark.usefixtures("many_rows")

NARROW = {"rows": 320, "features": 9, "classes": 3}
WIDE = {"rows": 160, "features": methods.MOST_COLUMNS + 10, "density": 0.01}
SAMPLED = {"rows": 13_000, "features": 3}
"""Enough rows per column for second derivatives of a sample, and for another one after that."""
FOUR_ONE_FOUR = ((2, 1), (4, 4))


def trainer_of(loss, *, is_wide=False, num_threads=1):
    """To 1e-6; smooth losses on wide data are easier with less of them."""
    return LinearTrainer(loss=loss, tol=1e-6, C=0.02 if is_wide else 1.0, num_threads=num_threads)


@pytest.fixture
def always_threads(monkeypatch):
    """Threads are used however few the rows are, and these stay where they are."""
    monkeypatch.setattr(local, "MOST_CACHED_VALUES", 2)
    monkeypatch.setattr(rows, "SMALL_VALUES", 0)


@pytest.mark.parametrize("num_threads", [40])
@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), *((loss, shape) for shape in (WIDE, SAMPLED) for loss in SMOOTH)],
    ids=[*LOSSES, *(f"{shape} {loss}" for shape in ("wide", "sampled") for loss in SMOOTH)],
)
def test_threads_come_to_the_same_but_for_rounding(loss, shape, num_threads, always_threads, monkeypatch):
    """While chunks come and go, fewer of them than threads among it; and twice to the same bits."""
    calls = []
    each_part = LocalData.each_part
    monkeypatch.setattr(
        LocalData,
        "each_part",
        lambda self, run, parts, *rest: (calls.append(len(parts)), each_part(self, run, parts, *rest)),
    )
    data, one = problem(**shape), trainer_of(loss, is_wide=shape is WIDE)
    runtime, many = InProcess(num_tasks=4, changes=FOUR_ONE_FOUR), dataclasses.replace(one, num_threads=num_threads)
    expected = data.run(one, runtime)
    assert set(calls) == {1}
    outcomes = [data.run(many, runtime) for _ in range(2)]
    assert max(calls) > 1
    assert is_newton_job(outcomes[0])
    assert_optimal(data, many, outcomes[0])
    assert len(outcomes[0].history) == len(expected.history)
    np.testing.assert_allclose(outcomes[0].model, expected.model, rtol=0, atol=1e-6 * np.abs(expected.model).max())
    np.testing.assert_array_equal(outcomes[0].model, outcomes[1].model)
    np.testing.assert_array_equal(outcomes[0].state, outcomes[1].state)


def test_threads_are_fewer_where_their_sums_would_take_more_memory_than_the_rows(always_threads, monkeypatch):
    """Second derivatives of three outputs beside a few rows."""
    monkeypatch.setattr(solver, "MOST_BLOCK_VALUES", 0)
    monkeypatch.setattr(
        LocalData, "each_part", lambda self, run, parts, take, _: [take(run(part)) for [part] in [parts]]
    )
    data, trainer = problem(rows=48, features=9, classes=3), trainer_of("hinge", num_threads=2)
    assert_optimal(data, trainer, data.run(trainer, 4))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), *((loss, shape) for shape in (WIDE, SAMPLED) for loss in SMOOTH)],
    ids=[*LOSSES, *(f"{shape} {loss}" for shape in ("wide", "sampled") for loss in SMOOTH)],
)
def test_a_pass_that_one_task_did_not_finish_is_made_again(loss, shape, num_threads, always_threads):
    """Whatever phase it is in: the others' sums count for nothing, and in the end all is as without it.

    Of two threads one had made its part.
    """
    data, trainer = problem(**shape), trainer_of(loss, is_wide=shape is WIDE, num_threads=num_threads)
    plain, stopped = Tasks(data, trainer, 3), Tasks(data, trainer, 3)
    for _ in range(12):
        plain.iterate()
        before = stopped.model.copy(), np.array(stopped.progress)
        updates = stopped.iterate(stopped={stopped.iteration % 3}, after=num_threads - 1)
        assert [update.is_partial for update in updates].count(True) == 1
        assert sum(update.samples for update in updates) < len(data.y)
        assert np.array_equal(stopped.model, before[0])
        if len(before[1]):
            assert np.array_equal(stopped.progress, before[1])
        stopped.iterate()
        np.testing.assert_allclose(stopped.model, plain.model, rtol=0, atol=1e-12 * np.abs(plain.model).max())
        assert [output.phase for output in stopped.state.outputs] == [output.phase for output in plain.state.outputs]
        np.testing.assert_allclose(stopped.duals(), plain.duals(), rtol=0, atol=1e-9)
        if plain.state.is_at_rest:
            break


def saved(data, trainer, folder, num_tasks, max_iterations, *, resume):
    """A run that is saved after each iteration."""
    settings = CheckpointSettings(folder=str(folder), every_iterations=1, resume=resume, keep=100)
    return data.run(trainer, num_tasks, max_iterations=max_iterations, checkpoint=settings)


def test_at_rest_with_a_smaller_tol_a_run_goes_on(tmp_path):
    """Outputs rest that were good enough for the first tol; the checkpoint serves another one."""
    data = problem(**NARROW)
    for loss in LOSSES:
        first = dataclasses.replace(trainer_of(loss), tol=1e-3)
        outcome = saved(data, first, tmp_path / loss, 4, 400, resume=False)
        state = NewtonState.look(outcome.certificate.progress)
        assert {output.phase for output in state.outputs} == {NewtonPhase.REST}
        second = saved(data, trainer_of(loss), tmp_path / loss, 4, 400, resume=True)
        assert len(second.history) > len(outcome.history)
        assert_optimal(data, trainer_of(loss), second)


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_pass_is_read_as_the_tasks_before_it_laid_it_out(counts, at):
    """Of many rows losses along a direction come with the pass of several tasks, and not with that of one."""
    data = problem(rows=4200, features=4)
    trainer, (first, then) = LinearTrainer(loss="hinge", tol=1e-6, algorithm="newton"), counts
    changed = data.run(trainer, InProcess(num_tasks=first, changes=((at, then),)))
    assert_optimal(data, trainer, changed)
    assert len(changed.history) <= 1.5 * len(data.run(trainer, 2).history)

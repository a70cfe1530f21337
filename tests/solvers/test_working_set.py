"""The working set on wide data: it comes to the optimum, and NumPy finds the same gap."""

import functools
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.working_set import steps
from chicle_elastic.solvers.linear.working_set.steps import WorkingSetPhase, WorkingSetState
from tests.harness.chaos_app import data
from tests.solvers.linear_jobs import Problem, assert_optimal, assert_true, is_newton_job, problem, recompute

TOL = 1e-6
DESCENTS = 8
"""Passes of coordinate descent over this data, were it too large to be gathered whole. A SELECT comes before them."""
PHASES = [("large", DESCENTS + 1 + phase) for phase in range(4)] + [("few", 1), ("few", 2), ("few", 3)]
"""Iterations after which the next pass is SELECT, GATHER, SOLVE, and SELECT again, of rows that are many, or few."""


@pytest.fixture(autouse=True)
def size(request, monkeypatch):
    """Whether all rows may be gathered at once, by default the rows of these tests are few."""
    found = getattr(request, "param", "few")
    if found == "large":
        monkeypatch.setattr(steps, "FEW_VALUES", 0)
    return found


@functools.cache
def counts(*, rows=400, features=3000, classes=2, weighted=False):
    """Counts with long tails beside hashed categories."""
    rng = np.random.default_rng(0)
    X = np.zeros((rows, features))
    columns = 3 + (rng.zipf(1.3, size=(rows, 12)) * 7919 * np.arange(1, 13)) % (features - 3)
    np.put_along_axis(X, columns, 1.0, axis=1)
    X[:, :3] = np.floor(rng.pareto(1.2, size=(rows, 3)) * 30.0)
    score = np.log1p(X[:, :3]).sum(axis=1) + X[:, 3:] @ rng.normal(size=features - 3) + rng.logistic(size=rows)
    y = np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score)
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], size=rows) if weighted else None
    return Problem(X=sp.csr_matrix(X), y=y.astype(np.int32), weights=weights)


def state_of(outcome):
    """As of the certificate."""
    assert WorkingSetState.is_of(outcome.certificate.progress)
    return WorkingSetState.look(outcome.certificate.progress)


@pytest.mark.parametrize(
    ("size", "loss"),
    [("large", "hinge"), ("few", "hinge"), ("few", "squared_hinge"), ("few", "modified_huber")],
    indirect=["size"],
)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("C", [100 / 400, 1.0, 100.0])
def test_sparse_data_comes_to_the_optimum_on_any_number_of_tasks(C, classes, size, loss):
    """In nearly as many iterations as on two tasks: only the passes of coordinate descent depend on their number."""
    data, trainer = counts(classes=classes, weighted=classes == 3), LinearTrainer(loss=loss, C=C, tol=TOL)
    rounds = []
    for num_tasks in (2, 16):
        outcome = data.run(trainer, num_tasks, max_iterations=100)
        assert_optimal(data, trainer, outcome)
        state = state_of(outcome)
        assert state.phase is WorkingSetPhase.REST
        rounds.append(len(outcome.history) - state.num_passes)
    assert max(rounds) - min(rounds) <= 5  # a round of three passes more, and where several passes end


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "modified_huber"])
@pytest.mark.parametrize("num_tasks", [2, 16])
def test_few_narrow_rows_take_as_many_iterations_on_any_number_of_tasks(loss, num_tasks):
    """One look, the rows, a solution, and another look; rounding may ask for a second solution."""
    data, trainer = problem(rows=400, features=20, classes=3), LinearTrainer(loss=loss, tol=TOL)
    outcome = data.run(trainer, num_tasks)
    assert_optimal(data, trainer, outcome)
    assert state_of(outcome).phase is WorkingSetPhase.REST
    assert len(outcome.history) <= 6


@pytest.mark.parametrize("size", ["large"], indirect=True)
def test_a_smooth_loss_on_many_rows_follows_newtons_method():
    """Where one look has told that the rows are too many for one task."""
    data, trainer = counts(), LinearTrainer(loss="squared_hinge", C=0.01, tol=1e-3)
    outcome = data.run(trainer, 4, max_iterations=200)
    assert is_newton_job(outcome)
    assert_true(data, trainer, outcome)


@pytest.mark.parametrize("size", ["large", "few"], indirect=True)
@pytest.mark.parametrize(("C", "num_tasks"), [(1.0, 4), (100.0, 16)])
def test_dense_data_comes_to_the_optimum(C, num_tasks, size):
    """More columns than rows: w separates the classes, and duals are far below a large C.

    That leaves nothing but rounding of a direction that is not exact, and of certificates, too.
    """
    data, trainer = problem(rows=150, features=2300), LinearTrainer(C=C, tol=TOL)
    outcome = data.run(trainer, num_tasks, max_iterations=100)
    found = recompute(data, trainer, outcome.model, outcome.state)
    assert trainer.relative_gap(outcome.model, outcome.certificate) == pytest.approx(found.gap, abs=1e-10)
    assert found.gap <= TOL
    w = outcome.model.reshape(found.w_of_duals.shape)
    np.testing.assert_allclose(w, found.w_of_duals, rtol=0, atol=1e-10 * np.abs(w).max())


@pytest.mark.parametrize("intercept", [0.0, 2.0])
@pytest.mark.parametrize("class_weights", [None, (0.3, 2.0, 0.0)])
def test_weights_and_intercept_are_part_of_the_objective(class_weights, intercept):
    """Also weights of 0, of rows and of a whole class."""
    data = counts(classes=3, weighted=True)
    trainer = LinearTrainer(tol=TOL, class_weights=class_weights, intercept_scaling=intercept)
    assert_optimal(data, trainer, data.run(trainer, 4, max_iterations=100))


@pytest.mark.parametrize(("size", "iteration"), PHASES, indirect=["size"])
@pytest.mark.parametrize("others", [1, 8])
def test_tasks_come_and_go_in_any_phase(iteration, others, size):
    """For two passes; the rows that the passes are about change hands in between."""
    data, trainer = counts(), LinearTrainer(tol=TOL)
    fixed = data.run(trainer, 4, max_iterations=100)
    assert state_of(fixed).num_passes == DESCENTS * (size == "large")
    elastic = data.run(
        trainer, InProcess(num_tasks=4, changes=((iteration, others), (iteration + 2, 4))), max_iterations=100
    )
    assert {record.num_tasks for record in elastic.history} == {4, others}
    assert_optimal(data, trainer, elastic)
    assert len(elastic.history) <= len(fixed.history) + 6


@pytest.mark.parametrize(("size", "max_iterations"), PHASES, indirect=["size"])
def test_a_run_that_ends_in_any_phase_says_the_truth(max_iterations, size):
    """Duals of the set are written into the chunks for the certificate."""
    data, trainer = counts(classes=3), LinearTrainer(tol=1e-9)
    outcome = data.run(trainer, 4, max_iterations=max_iterations)
    assert state_of(outcome).phase is not WorkingSetPhase.DESCEND
    assert_true(data, trainer, outcome)
    assert len(outcome.history) == max_iterations


@pytest.mark.parametrize("size", ["large"], indirect=True)
def test_newtons_method_goes_on_where_a_set_would_have_too_many_values(monkeypatch, size):
    """To the optimum, after passes of coordinate descent."""
    monkeypatch.setattr(steps, "MOST_BLOCK_VALUES", 100)
    data, trainer = counts(), LinearTrainer(tol=TOL)
    outcome = data.run(trainer, 4)
    assert len(outcome.history) > DESCENTS
    assert is_newton_job(outcome)
    assert_optimal(data, trainer, outcome)


@pytest.mark.parametrize("size", ["large"], indirect=True)
@pytest.mark.parametrize("left_at", range(DESCENTS, DESCENTS + 3))
def test_a_task_that_is_left_alone_with_too_many_undecided_rows_goes_on_as_an_only_task(monkeypatch, size, left_at):
    """With its race; it has no message for which its block would be small."""
    monkeypatch.setattr(steps, "MOST_BLOCK_VALUES", 100)
    data, trainer = counts(classes=3, weighted=True), LinearTrainer(tol=1e-6)
    outcome = data.run(trainer, InProcess(num_tasks=4, changes=((left_at, 1),)), max_iterations=100)
    assert_optimal(data, trainer, outcome)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_columns_of_any_scale_are_done_after_one_solution(scale):
    """P is that of w, whose duals have another one for rounding: else the set is solved for again and again."""
    data = counts()
    data = Problem(
        X=(data.X @ sp.diags_array(np.where(np.arange(3000) < 3, scale, 1.0))).tocsr(), y=data.y, weights=None
    )
    outcome = data.run(trainer := LinearTrainer(tol=TOL if scale < 1e4 else 1e-3), 4)
    assert len(outcome.history) <= (6 if scale < 1e4 else 10)  # rounding decides there whether it takes two
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= trainer.tol


def test_a_tolerance_below_rounding_keeps_what_was_reached():
    """No other method begins anew where the gap is as small as it can be."""
    outcome = counts().run(trainer := LinearTrainer(tol=1e-12), 4, max_iterations=60)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-7


def test_a_solution_ends_where_all_that_is_left_is_rounding(monkeypatch):
    """Beside duals that stay, a share of a gap that is rounding cannot be reached, however many passes are made."""
    passes = Counter()
    run = CoordinatePasses.run

    def counted(self, model, budget):
        passes[budget.iteration] += 1
        return run(self, model, budget)

    monkeypatch.setattr(CoordinatePasses, "run", counted)
    runtime = InProcess(num_tasks=1, changes=((6, 2), (12, 1)))
    X, y = data()
    Problem(X=X, y=y).run(LinearTrainer(C=10.0, tol=0.0), runtime, max_iterations=14)
    assert len(passes) > 6, "no set was solved for"
    assert max(passes.values()) < 50

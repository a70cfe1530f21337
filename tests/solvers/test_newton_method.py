"""Newton's method on chunks: every loss on any number of tasks comes to the optimum, and NumPy finds the same gap."""

import numpy as np
import pytest

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear import methods
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import (
    LOSSES,
    SMOOTH,
    Problem,
    assert_optimal,
    assert_true,
    is_newton_job,
    problem,
    with_changes,
)

pytestmark = pytest.mark.usefixtures("many_rows")

NARROW = {"rows": 480, "features": 7}


def is_expected(loss, num_tasks):
    """Whether Newton's method is what narrow data is given to."""
    return loss == "logistic" or num_tasks > 1


@pytest.mark.parametrize(
    ("intercept", "class_weights", "weighted"),
    [(1.0, None, False), (0.0, None, True), (3.0, (0.3, 2.0, 0.0), False), (1.0, (0.3, 2.0, 0.0), True)],
)
@pytest.mark.parametrize("shape", [{"features": 5}, {"features": 16, "density": 0.3}], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_and_intercept_are_part_of_the_objective(loss, shape, weighted, class_weights, intercept):
    """Also weights of 0, of rows and of a whole class; an intercept that is scaled, or none."""
    data = problem(rows=200, classes=3, weighted=weighted, **shape)
    trainer = LinearTrainer(loss=loss, tol=1e-6, C=0.7, class_weights=class_weights, intercept_scaling=intercept)
    outcome = data.run(trainer, 4)
    assert is_newton_job(outcome)
    assert_optimal(data, trainer, outcome)
    if intercept == 0:
        assert not outcome.model.reshape(3, -1)[:, -1].any()


@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("columns", [0, 6, 21])
def test_any_block_will_do_as_preconditioner(loss, is_dense, columns, monkeypatch):
    """Of no column, of some, and of all by every third row; products do the rest."""
    monkeypatch.setattr(methods, "MOST_COLUMNS", 2 * columns if columns < 21 else 21)
    monkeypatch.setattr(methods, "FEW_COLUMNS", 1)
    monkeypatch.setattr(methods, "CHEAP_PRODUCTS", 1)
    monkeypatch.setattr(methods, "ROWS_PER_COLUMN", 7)
    data = problem(rows=450, features=20, density=1.0 if is_dense else 0.3, classes=3)
    trainer = LinearTrainer(loss=loss, tol=1e-6)
    outcome = data.run(trainer, 4)
    assert is_newton_job(outcome)
    assert_optimal(data, trainer, outcome)


@pytest.mark.parametrize("C", [1e-12, 1e-3, 1e3, 1e8])
@pytest.mark.parametrize("loss", LOSSES)
def test_any_C_comes_to_the_optimum(loss, C):
    """From the one whose duals are all at their bound to the one that hardly regularises; the classes overlap."""
    data = problem(rows=300, features=5)
    trainer = LinearTrainer(loss=loss, C=C, tol=1e-6)
    assert_optimal(data, trainer, data.run(trainer, 4))


@pytest.mark.parametrize("max_iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_that_ends_early_says_the_truth(loss, max_iterations):
    """The gap is that of the w and the duals that are handed out, though they do not belong together yet."""
    data = problem(rows=200, features=9, classes=3)
    trainer = LinearTrainer(loss=loss, tol=1e-9)
    outcome = data.run(trainer, 4, max_iterations=max_iterations)
    found = assert_true(data, trainer, outcome)
    assert found.gap > trainer.tol
    assert len(outcome.history) == max_iterations
    assert f"all {max_iterations} iterations used at a relative duality gap of {found.gap:.2e}" in outcome.reason


@pytest.mark.parametrize("num_tasks", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_good_duals_are_at_rest_at_once(loss, num_tasks):
    """A fit goes on where one has ended: one pass finds that nothing is to be done."""
    data = problem(classes=3, **NARROW)
    trainer = LinearTrainer(loss=loss, tol=1e-6)
    first = data.run(trainer, 4)
    again = data.run(with_changes(trainer, tol=1e-5), num_tasks, initial_state=first.state)
    assert_optimal(data, with_changes(trainer, tol=1e-5), again)
    assert len(again.history) <= 2
    if is_expected(loss, num_tasks):
        assert len(again.history) == 1
        np.testing.assert_allclose(again.state, first.state, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_feature_of_scale_1e8_does_not_keep_a_job_from_its_end(loss):
    """w of the duals is rounding there: w is certified where steps no longer change anything."""
    data = problem(rows=200, features=6)
    X = data.X.copy()
    X[:, 3] *= 1e8
    scaled, trainer = Problem(X=X, y=data.y), LinearTrainer(loss=loss, tol=1e-6)
    outcome = scaled.run(trainer, InProcess(num_tasks=4))
    found = assert_true(scaled, trainer, outcome)
    assert found.gap <= 1e-6
    assert len(outcome.history) <= (40 if loss == "hinge" else 12)

"""Coordinate descent over small data: where it ends, whatever the rows, and that large data comes to the same."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.errors import DataError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear import tables
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import Problem, assert_optimal, assert_true, problem

LOSSES = ["hinge", "squared_hinge", "logistic"]
FORMS = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "csr": lambda X: sp.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_it_comes_to_the_optimum_over_any_rows(loss, form):
    """By itself, in several chunks, with weights, some of them 0."""
    data = problem(rows=300, features=9, classes=3, weighted=True)
    data = Problem(X=FORMS[form](data.X), y=data.y, weights=data.weights)
    trainer = LinearTrainer(loss=loss, C=0.3, tol=1e-5, algorithm="cocoa")
    assert_optimal(data, trainer, data.run(trainer, 1))


@pytest.mark.parametrize("intercept", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("C", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_small_data_comes_to_what_large_data_comes_to(loss, C, intercept, monkeypatch):
    """Passes without the cache's limits, and within them: the same objective."""
    data = problem(rows=200, features=6)
    trainer = LinearTrainer(loss=loss, C=C, tol=1e-8, intercept_scaling=intercept)
    small = data.run(trainer, 1)
    monkeypatch.setattr(tables, "MOST_CACHED_VALUES", 0)
    large = data.run(trainer, 1)
    found = [outcome.history[-1].figures["objective"] for outcome in (small, large)]
    assert found[0] == pytest.approx(found[1], rel=2e-8)
    for outcome in (small, large):
        assert_optimal(data, trainer, outcome)


@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_first_certificate_of_small_data_finds_what_the_passes_have_found(classes, C):
    """They end with the gap of w, and not with a sum over a moving w that is refused as often as not."""
    history = problem(rows=300, features=9, classes=classes).run(LinearTrainer(C=C, algorithm="cocoa"), 1).history
    assert sum("duality_gap" in record.figures for record in history) == 1
    figures = history[-1].figures
    assert figures["duality_gap_estimate"] == pytest.approx(figures["duality_gap"], rel=1e-6)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_tasks_come_and_go_between_its_passes(loss):
    """Its duals are those of the chunks, and go with them."""
    data, trainer = problem(rows=300, features=9, classes=3), LinearTrainer(loss=loss, C=5.0, tol=1e-7)
    runtime = InProcess(num_tasks=1, changes=((1, 3), (3, 1), (5, 2), (7, 1)))
    assert assert_true(data, trainer, data.run(trainer, runtime)).gap <= trainer.tol


def test_rows_without_any_value_and_two_that_contradict_each_other():
    """A dual that cannot move w goes to its bound at once; of equal rows with other labels both are on theirs."""
    X = np.zeros((40, 3))
    X[5:20] = np.random.default_rng(0).normal(size=(15, 3))
    X[20:35] = X[5:20]
    y = np.arange(40) % 2
    y[20:35] = 1 - y[5:20]
    data, trainer = Problem(X=X, y=y.astype(np.int32)), LinearTrainer(C=1e3, tol=1e-9, intercept_scaling=0.0)
    assert_optimal(data, trainer, data.run(trainer, 1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_none_is_named(value):
    """Before anything comes of it."""
    data = problem(rows=50, features=4)
    data.X[17, 2] = value
    with pytest.raises(DataError, match="NaN or infinite"):
        data.run(LinearTrainer(), 1)


def test_rows_that_many_passes_have_left_out_are_in_a_pass_beside_other_tasks():
    """A task was alone for a while, and another one joins with chunks that had been missing: its own stay the same."""

    @dataclass(frozen=True, kw_only=True)
    class Joined(LinearTrainer):
        asked: list[int] = field(default_factory=list)

        def parallelism(self, num_tasks):
            self.asked.append(num_tasks)
            return 1 if len(self.asked) <= 6 else 2

    case = problem(rows=300, features=8)
    outcome = case.run(Joined(tol=0.0, algorithm="cocoa"), max_iterations=12)
    assert {record.samples for record in outcome.history} == {300}

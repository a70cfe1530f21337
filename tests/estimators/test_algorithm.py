"""The algorithm can be asked for: the paper's on any number of tasks, and Newton's method where it is not chosen."""

import pytest
from sklearn.datasets import load_iris

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

MODELS = {
    "hinge": lambda **params: ChicleSVM(C=0.1, store_duals=True, **params),
    "squared hinge": lambda **params: ChicleSVM(C=0.1, loss="squared_hinge", store_duals=True, **params),
    "logistic": lambda **params: ChicleLogisticRegression(C=0.1, store_duals=True, **params),
}


@pytest.mark.parametrize(("num_tasks", "changes"), [(1, ()), (4, ((2, 3), (6, 1)))])
@pytest.mark.parametrize("name", MODELS)
def test_cocoa_comes_to_its_gap_on_any_number_of_tasks(name, num_tasks, changes):
    """Coordinate descent to the end, with a certified gap, and at least as many iterations as Newton's method takes."""
    X, y = problems.cancer()
    runtime = InProcess(num_tasks=num_tasks, changes=changes)
    model = MODELS[name](algorithm="cocoa", runtime=runtime, max_iter=3000).fit(X, y)
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3
    assert list(model.history_.methods.values()) == ["coordinate descent (CoCoA), because of algorithm='cocoa'"]
    best = MODELS[name](tol=1e-6).fit(X, y)
    if name == "logistic":  # whose intercept only coordinate descent penalises
        best.objective_ += 0.5 * best.intercept_**2
    assert model.objective_[0] <= best.objective_[0] * (1 + 1e-3)


def test_newton_is_taken_where_coordinate_descent_would_be():
    """The hinge on one task; the history says why."""
    X, y = problems.cancer()
    model = ChicleSVM(C=0.1, algorithm="newton", store_duals=True).fit(X, y)
    assert list(model.history_.methods.values()) == ["Newton's method on chunks, because of algorithm='newton'"]
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3


def test_an_algorithm_that_does_not_go_with_the_rest_is_refused():
    """By the name of the parameter."""
    X, y = problems.cancer()
    with pytest.raises(UsageError, match="algorithm='cocoa' does not go with an l1 penalty"):
        ChicleLogisticRegression(l1_ratio=1.0, algorithm="cocoa").fit(X, y)
    with pytest.raises(UsageError, match="multi_class='ovr'"):
        ChicleLogisticRegression(algorithm="newton").fit(*load_iris(return_X_y=True))
    with pytest.raises(ValueError, match="algorithm"):
        ChicleSVM(algorithm="sgd").fit(X, y)
